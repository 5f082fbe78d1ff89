"""What /proc says about processes: who descends from whom, who carries a mark, what they hold."""

import os
from collections.abc import Iterator
from pathlib import Path

from runners.guardian import tree

PROC = Path("/proc")


def descendants(pid: int) -> list[int]:
    """Return the living descendants of *pid*, children before their parents."""
    return tree(pid)


def ancestors(pid: int) -> Iterator[int]:
    """Yield *pid* and everything above it."""
    while pid > 0:
        yield pid
        pid = parent(pid) or 0


def parent(pid: int) -> int | None:
    """Return the parent of *pid*, None when it has ended."""
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def alive(pid: int) -> bool:
    """True while *pid* runs; a process that ended and was not collected yet does not."""
    fields = _stat(pid)
    return fields is not None and fields[0] not in {"Z", "X"}


def name(pid: int) -> str:
    """Return the short name of *pid*, as `ps` shows it."""
    try:
        return (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "ended"
    except PermissionError:
        return "not ours to see"


def command(pid: int) -> list[str]:
    """Return the words *pid* was started with; none when it has ended or we may not look."""
    try:
        line = (PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return []
    return [os.fsdecode(word) for word in line.split(b"\0")[:-1]]


def bytes_read(pid: int) -> int:
    """Return how much *pid* has read so far, by calls and through mapped files; 0 when unknown."""
    try:
        text = (PROC / str(pid) / "io").read_text(encoding="ascii")
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return 0
    fields = dict(line.split(": ") for line in text.splitlines())
    return int(fields["rchar"]) + int(fields["read_bytes"])


def marked(variable: str, value: str) -> list[int]:
    """Return our user's living processes that were started with *variable* set to *value*."""
    mark = f"{variable}={value}".encode()
    return [pid for pid in _all() if mark in _environment(pid).split(b"\0") and alive(pid)]


def open_files(pid: int) -> Iterator[str]:
    """Yield what the descriptors of *pid* point at; nothing when we may not look."""
    try:
        entries = list((PROC / str(pid) / "fd").iterdir())
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return
    for entry in entries:
        try:
            yield str(entry.readlink())
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # closed while we looked, or not ours to see


def holders(file: str) -> list[int]:
    """Return the processes that have *file* open, as far as we may look."""
    return [pid for pid in _all() if file in open_files(pid)]


def _all() -> list[int]:
    return [int(entry.name) for entry in os.scandir(PROC) if entry.name.isdigit()]


def _environment(pid: int) -> bytes:
    directory = PROC / str(pid)
    try:
        if directory.stat().st_uid != os.getuid():
            return b""
        return (directory / "environ").read_bytes()
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return b""


def _stat(pid: int) -> list[str] | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")  # a name may be any bytes
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()
