"""A port held for one launch: no other launch on this machine is given it meanwhile."""

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from runners import listener
from runners.cause import Cause
from runners.errors import MachineFaultError

# Below the ports the kernel gives to outgoing connections, and below those SGLang draws its own
# internal ports from (22000 to 29999).
POOL = range(20000, 22000)


@contextmanager
def reserve(wanted: int | None = None, *, folder: Path | None = None) -> Iterator[int]:
    """Hold *wanted*, or a free port of the pool, until the block is left.

    Raises:
        MachineFaultError: another launch or another program has it, or none is free.
    """
    place = runtime_folder() if folder is None else folder
    port, lock = _first(place) if wanted is None else (wanted, _wanted(place, wanted))
    try:
        yield port
    finally:
        os.close(lock)  # lets go; the file stays, as removing it would race with the next holder


def runtime_folder(variables: Mapping[str, str] = os.environ) -> Path:
    """Return this user's folder for what lives as long as a program runs; make it.

    Raises:
        MachineFaultError: it belongs to somebody else.
    """
    own = variables.get("XDG_RUNTIME_DIR")
    parent = Path(own) if own and Path(own).is_dir() else Path(tempfile.gettempdir())
    folder = parent / f"sgl-tuner-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
        raise MachineFaultError(
            f"{folder} must be a folder of this user's, found another's; remove it",
            lasting=True,
            cause=Cause.PORT,
        )
    return folder


def _first(folder: Path) -> tuple[int, int]:
    start = os.getpid() % len(POOL)  # so that parallel launches seldom ask for the same one
    for port in (*POOL[start:], *POOL[:start]):
        if (lock := _lock(folder, port)) is None:
            continue
        if listener.holder(port) is None and _binds(port):
            return port, lock
        os.close(lock)
    raise MachineFaultError(
        f"a port from {POOL[0]} to {POOL[-1]} must be free, found none; set engine.port",
        cause=Cause.PORT,
    )


def _wanted(folder: Path, port: int) -> int:
    lock = _lock(folder, port)
    if lock is None:
        raise MachineFaultError(
            f"port {port} is held by another launch on this machine; leave out engine.port and a "
            "free one is taken",
            cause=Cause.PORT,
        )
    try:
        listener.assert_free(port)
    except MachineFaultError:
        os.close(lock)
        raise
    return lock


def _lock(folder: Path, port: int) -> int | None:
    lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _binds(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
