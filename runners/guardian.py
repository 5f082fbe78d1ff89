"""Starts one engine, outlives any death of its caller, and takes the engine's whole tree down.

Run by path with `python -I -S guardian.py CALLER_PID GRACE_S LOG_FILE WORD...`; standard library
only, so that it starts in tens of milliseconds. It is not a child of the caller (a worker's direct
children are shot with it), it adopts what the engine's processes leave behind, and it stops the
engine when the caller dies, closes the guardian's standard input, or sends it SIGTERM.

It writes JSON lines to its standard output: `{"guardian": pid, "child": pid}`, then
`{"exit": code}` when the engine's main process ends (minus the signal's number when killed), or
`{"error": text}` when it cannot be started. That pipe closes when no process of the engine is
left.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
KILL_LIMIT_S = 30.0  # a process that a driver holds in the kernel dies late; then we report it
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where the engine puts it, not we
SHARED_MEMORY_PREFIXES = ("sglang_loads_", "sgl_shm_")
YOUNG_S, YOUNG_LOOK_S, LOOK_S = 120.0, 1.0, 30.0  # how often we note what it has there

_libc = ctypes.CDLL(None, use_errno=True)


def tree(root: int) -> list[int]:
    """Return the descendants of *root*, children before their parents."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (parent := _parent(entry.name)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        queue.extend(children.get(queue[0], []))
        found.append(queue.pop(0))
    return found[:0:-1]


def _parent(pid: str) -> int | None:
    try:
        stat = Path("/proc", pid, "stat").read_text(errors="replace")  # a name may be any bytes
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[1])


class Guardian:
    """The engine's parent, and the adopter of all its orphans."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._child: int | None = None
        self._engine: subprocess.Popen[bytes] | None = None
        self._childless = False
        self._caller_listens = True
        self._born_s = self._next_look_s = time.monotonic()
        self._shared: set[Path] = set()
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def start(self, command: list[str], log_file: str) -> bool:
        """Start the engine in a session of its own; say so, or say why not."""
        me = os.getpid()
        with Path(log_file).open("ab") as log:
            try:
                engine = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=lambda: _die_with(me),  # noqa: PLW1509  # we have one thread
                )
            except OSError as error:
                self._tell({"error": str(error)})
                return False
        # kept: a Popen that goes away takes the exit code of one that has ended already with it
        self._engine = engine
        self._child = engine.pid
        self._tell({"guardian": me, "child": engine.pid})
        return True

    def watch(self, caller: int) -> None:
        """Return when the engine has ended, the caller is gone, or somebody asks to stop."""
        waiting = select.poll()
        for descriptor in (caller, 0, self._wake):
            waiting.register(descriptor, select.POLLIN)
        while self._child is not None:
            ready = {descriptor for descriptor, _ in waiting.poll(1000 * self._look())}
            if ready & {caller, 0} or self._told_to_stop(ready):
                return
            self._reap()

    def stop_all(self) -> None:
        """End every descendant: politely, then after the grace by force; then tidy up."""
        self._note_shared_memory()
        self._end(signal.SIGTERM, self._grace_s)
        self._end(signal.SIGKILL, KILL_LIMIT_S)
        for file in self._shared:
            file.unlink(missing_ok=True)

    def _look(self) -> float:
        """Note the shared memory if it is time to; return the seconds until the next look.

        An engine that crashes leaves its files, and nobody can tell any more that they were its.
        """
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._note_shared_memory()
            young = now_s - self._born_s < YOUNG_S
            self._next_look_s = now_s + (YOUNG_LOOK_S if young else LOOK_S)
        return self._next_look_s - now_s

    def _note_shared_memory(self) -> None:
        for pid in tree(os.getpid()):
            self._shared.update(_shared_memory(pid))

    def _end(self, number: int, limit_s: float) -> None:
        deadline, told = time.monotonic() + limit_s, set[int]()
        self._reap()
        while not self._childless and time.monotonic() < deadline:
            for pid in self._addressees(number):
                if pid not in told or number == signal.SIGKILL:
                    told.add(pid)
                    _send(pid, number)
            select.select([self._wake], [], [], 0.05)
            self._told_to_stop({self._wake})
            self._reap()

    def _addressees(self, number: int) -> list[int]:
        # An engine whose main process is asked alone winds its workers down itself; one whose
        # workers are shot beside it takes that for a crash and stays to investigate.
        if number == signal.SIGTERM and self._child is not None:
            return [self._child]
        return tree(os.getpid())

    def _told_to_stop(self, ready: set[int]) -> bool:
        if self._wake not in ready:
            return False
        try:
            return bool({signal.SIGTERM, signal.SIGINT} & set(os.read(self._wake, 4096)))
        except BlockingIOError:
            return False

    def _reap(self) -> None:
        while not self._childless:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True  # all orphans come to us: no child, no descendant
                return
            if pid == 0:
                return
            if pid == self._child:
                self._child = None
                self._tell({"exit": os.waitstatus_to_exitcode(status)})

    def _tell(self, news: dict[str, object]) -> None:
        if not self._caller_listens:
            return
        try:
            os.write(1, json.dumps(news).encode() + b"\n")
        except BrokenPipeError:
            self._caller_listens = False  # the caller is gone, and that ends us anyway


def _shared_memory(pid: int) -> list[Path]:
    """Return the files that SGLang would leave in shared memory if its *pid* were killed."""
    files = []
    try:
        for descriptor in Path("/proc", str(pid), "fd").iterdir():
            file = descriptor.readlink()
            if file.parent == SHARED_MEMORY and file.name.startswith(SHARED_MEMORY_PREFIXES):
                files.append(file)
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return files  # it ended by itself in the meantime
    return files


def _die_with(guardian: int) -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != guardian:
        os._exit(1)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended by itself in the meantime


def main(words: list[str]) -> int:
    """Detach from the caller, then guard."""
    caller_pid, grace_s, log_file, *command = words
    caller = os.pidfd_open(os.getppid())  # held, so that a reused pid cannot fool us
    if os.getppid() != int(caller_pid):
        return 1  # the caller died before we looked
    if os.fork():
        return 0
    os.setsid()
    if os.fork():
        os._exit(0)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    guardian = Guardian(float(grace_s))
    if guardian.start(command, log_file):
        guardian.watch(caller)
        guardian.stop_all()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
