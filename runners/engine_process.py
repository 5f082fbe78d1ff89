"""An engine as processes on this machine: started under a guardian, and proven gone at the end."""

import json
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from runners import guardian, janitor, listener, process_table
from runners.cause import Cause
from runners.errors import MachineFaultError

START_LIMIT_S = 20.0  # for the guardian, which takes tens of milliseconds
STOP_SLACK_S = 10.0
LOG_BYTES = 256 * 1024  # an argparse error comes after 150 kB of help
LONGEST_LINE = 2000  # characters: our patterns take long over lines of hundreds of kB
KILLED = -9


class EngineProcess:
    """A started engine: its processes, whether it still runs, and what it logged."""

    def __init__(self, log_path: Path, news: "_News") -> None:
        self._log_path = log_path
        self._news = news
        self._exit_code: int | None = None
        first = news.next(START_LIMIT_S)
        if first is None or "error" in first:
            said = "no answer" if first is None else first["error"]
            raise MachineFaultError(
                f"the engine's command cannot run: {said}", lasting=True, cause=Cause.INSTALLATION
            )
        self._guardian_pid = int(str(first["guardian"]))
        self.pid = int(str(first["child"]))

    def exit_code(self) -> int | None:
        """Return how the main process ended (minus the signal's number), None while it runs."""
        while self._exit_code is None and (news := self._news.next(0)) is not None:
            self._exit_code = int(str(news["exit"]))
        if self._exit_code is None and self._news.ended:
            return KILLED  # somebody shot the guardian, and the kernel the engine with it
        return self._exit_code

    def pids(self) -> list[int]:
        """Return all living processes of the engine."""
        return process_table.descendants(self._guardian_pid)

    def check_port(self, port: int) -> None:
        """Check that it is this engine that listens on *port*.

        Raises:
            MachineFaultError: nobody does, or somebody else.
        """
        listener.assert_ours(port, self.pids())

    def check_port_not_taken(self, port: int) -> None:
        """Check that nobody else listens on *port*.

        Raises:
            MachineFaultError: somebody does.
        """
        listener.assert_not_taken(port, self.pids())

    def log_tail(self, lines: int = 200) -> str:
        """Return the last *lines* of what the engine printed; the ends of long ones are cut."""
        with self._log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
            text = log.read().decode(errors="replace")
        return "\n".join(line[:LONGEST_LINE] for line in text.splitlines()[-lines:])


@contextmanager
def launch(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log_path: Path,
    grace_s: float,
    study_id: str,
) -> Iterator[EngineProcess]:
    """Start *command* with exactly *env* and two marks; leaving stops it and proves it gone.

    Raises:
        MachineFaultError: it cannot be started, or something of it will not die.
    """
    launch_id = secrets.token_hex(8)
    marks = {janitor.STUDY_MARK: study_id, janitor.LAUNCH_MARK: launch_id}
    log_path.touch()
    caller = subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", guardian.__file__),
            *(str(os.getpid()), str(grace_s), str(log_path), *command),
        ],
        # SGLang's processes rename themselves over their environment unless SPT_NOENV is set, and
        # then the marks are gone.
        env={**env, "SPT_NOENV": "1", **marks},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    news = _News(caller)
    try:
        engine = EngineProcess(log_path, news)
        caller.wait()  # it left when the guardian began
        yield engine
    finally:
        news.ask_to_stop()
        news.wait_for_end(grace_s + guardian.KILL_LIMIT_S + STOP_SLACK_S)
        janitor.kill_marked(janitor.LAUNCH_MARK, launch_id)
        caller.wait()


class _News:
    """The two pipes to the guardian: JSON lines from it, and one whose end tells it to stop."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None  # noqa: S101  # we asked for pipes
        assert process.stdout is not None  # noqa: S101
        self._stop, self._lines = process.stdin, process.stdout
        self._buffer = b""
        self._poll = select.poll()  # not select(), which fails when a worker has 1,024 files open
        self._poll.register(self._lines, select.POLLIN)
        self.ended = False

    def next(self, wait_s: float) -> dict[str, object] | None:
        """Return the next news, None when there is none within *wait_s*."""
        deadline = time.monotonic() + wait_s
        while b"\n" not in self._buffer and not self.ended:
            if not self._more(max(0.0, deadline - time.monotonic())):
                return None
        line, newline, self._buffer = self._buffer.partition(b"\n")
        news: dict[str, object] | None = json.loads(line) if newline else None
        return news

    def ask_to_stop(self) -> None:
        self._stop.close()

    def wait_for_end(self, limit_s: float) -> None:
        """Wait until the guardian has seen the last process of the engine end."""
        deadline = time.monotonic() + limit_s
        while not self.ended and self._more(max(0.0, deadline - time.monotonic())):
            pass
        self._lines.close()

    def _more(self, wait_s: float) -> bool:
        if not self._poll.poll(wait_s * 1000):
            return False
        data = os.read(self._lines.fileno(), 4096)
        self._buffer += data
        self.ended = not data
        return True
