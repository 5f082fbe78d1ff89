"""A launched engine as a trial sees it: when it is ready, whether it is ours, why it died."""

import shlex
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Protocol

import httpx

from runners import diagnosis, process_table
from runners.cause import Cause
from runners.errors import InvalidMeasurementError, MachineFaultError, RunnerError
from runners.log_reader import LogReader
from runners.sglang_api import SGLangApi
from runners.spec import EngineSpec
from runners.startup_progress import Observation, StartupProgress

POLL_S = 0.05
LAST_WORDS_S = 1.0  # a dying engine breaks its connections a moment before its exit is known
NEWS_TICKS = 100  # polls between two lines of progress: about 5 s
LOOK_S = 0.25  # between two looks at the log
OBSERVE_S = 1.0  # between two looks at what its processes and its GPUs do
DYING_S = 2.0  # an engine that announced its end and hangs is not waited for longer


class Process(Protocol):
    """What was started, as the launch must see it: a process tree, or a container."""

    def exit_code(self) -> int | None:
        """Return how it ended (minus the signal's number when killed), None while it runs."""

    def pids(self) -> list[int]:
        """Return its living processes, as this machine numbers them."""

    def check_port(self, port: int) -> None:
        """Raise MachineFaultError unless it is this engine that listens on *port*."""

    def check_port_not_taken(self, port: int) -> None:
        """Raise MachineFaultError when somebody else listens on *port*."""

    def log_tail(self, lines: int = 200) -> str:
        """Return the last *lines* of what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """Where to see that an engine gets on, beside its processes."""

    log_path: Path
    gpu_memory_mib: Callable[[], int | None] = lambda: None


class LiveEngine:
    """One launched engine and its control plane."""

    def __init__(
        self,
        spec: EngineSpec,
        process: Process,
        api: SGLangApi,
        port: int,
        cancelled: Callable[[], bool] = lambda: False,
        *,
        signs: Signs | None = None,
    ) -> None:
        self._spec = spec
        self._process = process
        self._api = api
        self._port = port
        self._cancelled = cancelled
        self._ready = False
        self._oom_kills = oom_kills()
        self._log = None if signs is None else LogReader(signs.log_path)
        self._gpu_memory_mib = (lambda: None) if signs is None else signs.gpu_memory_mib
        self._new_lines: list[str] = []  # since the last observation of the start
        self._next_look = self._next_observation = 0.0
        self._dying_since: float | None = None

    def wait_until_ready(self, say: Callable[[str], None]) -> float:
        """Wait for a real completion and the end of the engine's own warm-up; return the seconds.

        Raises:
            RunnerError: the engine died, did not answer in time, or somebody took its port.
        """
        begun = time.monotonic()
        progress = StartupProgress(
            begun, limit_s=self._spec.startup_timeout_s, stall_s=self._spec.startup_stall_s
        )
        given_up = threading.Event()
        pool = ThreadPoolExecutor(1)  # a request may hang; the engine's death must not wait for it
        answer = pool.submit(self._first_answer, begun + self._spec.startup_timeout_s, given_up)
        try:
            for tick in count():
                if answer.done():
                    break
                self._check_starting(progress)
                if tick % NEWS_TICKS == NEWS_TICKS - 1:
                    self._process.check_port_not_taken(self._port)
                    say(f"engine {progress.phase}, {time.monotonic() - begun:.0f} s")
                time.sleep(POLL_S)
            answer.result()
        finally:
            given_up.set()
            pool.shutdown(wait=False)
        self._ready = True
        return time.monotonic() - begun

    def check_alive(self) -> None:
        """Raise what the engine died of, if it did, or that the user broke the launch off."""
        if self._cancelled():
            raise MachineFaultError("the user broke the launch off", cause=Cause.CANCELLED)
        if (code := self._process.exit_code()) is not None:
            raise self._death(code)
        self._look_at_log(time.monotonic())

    def check_ours(self) -> dict[str, Any]:
        """Check that the answering server is the one we started; return what it says of itself.

        Raises:
            MachineFaultError: it is another one.
        """
        self._process.check_port(self._port)
        info = self._api.server_info()
        for field, expected in (("model_path", self._spec.model), ("port", self._port)):
            if info.get(field) != expected:
                raise MachineFaultError(
                    f"the server on port {self._port} must be the one we started, with {field} "
                    f"{expected!r}, found {info.get(field)!r}",
                    cause=Cause.PORT,
                )
        check_command(info.get("launch_command"), self._spec.model, self._port)
        return info

    def blame(self, error: RunnerError | httpx.HTTPError) -> RunnerError:
        """Return what is really behind *error*: the engine's death, when it died."""
        if isinstance(error, RunnerError) and self._dying_since is not None:
            return error  # it hangs as it dies, and has been diagnosed
        deadline = time.monotonic() + LAST_WORDS_S
        while time.monotonic() < deadline:
            if (code := self._process.exit_code()) is not None:
                return self._death(code)
            time.sleep(POLL_S)
        if isinstance(error, RunnerError):
            return error
        return InvalidMeasurementError(f"the engine runs, but did not answer us: {error!r}")

    def _first_answer(self, deadline: float, given_up: threading.Event) -> None:
        for answers in (self._completes, self._api.warmed_up):
            while not given_up.is_set() and not answers(max(POLL_S, deadline - time.monotonic())):
                given_up.wait(POLL_S)

    def _completes(self, timeout_s: float) -> bool:
        return self._api.completes(self._spec.model, timeout_s)

    def _check_starting(self, progress: StartupProgress) -> None:
        self.check_alive()
        now = time.monotonic()
        if now >= self._next_observation:
            self._next_observation = now + OBSERVE_S
            progress.observe(self._observation(), now)
        if (limit := progress.exceeded(now)) is not None:
            raise diagnosis.never_ready(
                self._process.log_tail(),
                getattr(self._spec, limit),
                self._spec.flags,
                field=limit,
                doing=progress.phase,
            )

    def _observation(self) -> Observation:
        lines, self._new_lines = self._new_lines, []
        return Observation(
            new_lines=lines,
            read_bytes=sum(map(process_table.bytes_read, self._process.pids())),
            gpu_memory_mib=self._gpu_memory_mib(),
        )

    def _look_at_log(self, now: float) -> None:
        """Raise the reason when the engine announced its end, and hangs as it dies."""
        if self._dying_since is not None and now - self._dying_since > DYING_S:
            raise self._death(None)
        if self._log is None or now < self._next_look:
            return
        self._next_look = now + LOOK_S
        lines = self._log.new_lines()
        if self._dying_since is None and diagnosis.fatal("\n".join(lines)):
            self._dying_since = now
        if not self._ready:
            self._new_lines += lines

    def _death(self, code: int | None) -> RunnerError:
        return diagnosis.diagnose(
            diagnosis.Ending(
                exit_code=code,
                log=self._process.log_tail(),
                ready=self._ready,
                fixed_flags=self._spec.flags,
                oom_kills=oom_kills() - self._oom_kills,
            )
        )


def check_command(command: object, model: str, port: int) -> None:
    """Check the words a server says it was started with; one that does not say passes."""
    if not isinstance(command, str | list | tuple):
        return
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    for flag, expected in (("--model-path", model), ("--port", str(port))):
        if f"{flag}={expected}" not in words and [flag, expected] not in map(
            list, pairwise(words)
        ):
            raise MachineFaultError(
                f"the server on port {port} must be the one we started, with {flag} {expected}, "
                f"found that it was started with: {shlex.join(words)[:500]}",
                cause=Cause.PORT,
            )


def oom_kills() -> int:
    """Return how often this machine's kernel has killed a process for want of memory."""
    counters = dict(
        line.split() for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    )
    return int(counters.get("oom_kill", 0))
