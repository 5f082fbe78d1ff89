"""Ports on the loopback interface: a free one, and whose process answers on one."""

import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from runners import process_table
from runners.cause import Cause
from runners.errors import MachineFaultError

LISTENING = "0A"  # the kernel's number for the state
# How /proc/net writes 0.0.0.0 and 127.x.x.x, and the IPv6 addresses a client of ours could reach.
ANY_IPV4, LOOPBACK_IPV4_END = "00000000", "7F"
IPV6 = ("0" * 32, "0" * 24 + "01000000", "0000000000000000FFFF00000100007F")


@dataclass(frozen=True, slots=True)
class Holder:
    """Who listens on a port; the process id is unknown when it is another user's."""

    pid: int | None
    name: str

    def __str__(self) -> str:
        return self.name if self.pid is None else f"pid {self.pid}, {self.name}"


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def holder(port: int) -> Holder | None:
    """Return who listens on *port* of this machine's loopback interface, None for nobody."""
    return next(iter(_holders(port)), None)


def assert_free(port: int) -> None:
    """Check that nobody listens on *port*.

    Raises:
        MachineFaultError: somebody does.
    """
    if (found := holder(port)) is not None:
        raise MachineFaultError(_taken(port, found), cause=Cause.PORT)


def assert_ours(port: int, pids: Collection[int]) -> None:
    """Check that every listener on *port* is one of *pids*.

    Raises:
        MachineFaultError: nobody listens, or somebody else does.
    """
    if not _listening(port):
        raise MachineFaultError(
            f"nobody listens on port {port}, although it just answered", cause=Cause.PORT
        )
    assert_not_taken(port, pids)


def assert_not_taken(port: int, pids: Collection[int]) -> None:
    """Check that nobody but *pids* listens on *port*.

    Raises:
        MachineFaultError: somebody else does.
    """
    for one in _holders(port):
        if one.pid not in pids:
            raise MachineFaultError(_taken(port, one), cause=Cause.PORT)


def _taken(port: int, found: Holder) -> str:
    return (
        f"port {port} is held by another process ({found}); stop that process yourself, or leave "
        "out engine.port and a free one is taken"
    )


def _holders(port: int) -> list[Holder]:
    return [one for inode in _listening(port) for one in _owners(inode)]


def _owners(inode: str) -> list[Holder]:
    pids = process_table.holders(f"socket:[{inode}]")
    return [Holder(p, process_table.name(p)) for p in pids] or [Holder(None, "not ours to see")]


def _listening(port: int) -> list[str]:
    inodes = []
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():  # a kernel without IPv6
            continue
        for line in table.read_text().splitlines()[1:]:
            words = line.split()
            address, _, local_port = words[1].partition(":")
            if words[3] == LISTENING and int(local_port, 16) == port and _reachable(address):
                inodes.append(words[9])
    return inodes


def _reachable(address: str) -> bool:
    return address == ANY_IPV4 or address in IPV6 or address[6:] == LOOPBACK_IPV4_END
