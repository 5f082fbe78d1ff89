"""How an engine ended, as seen from outside, and what its log says as it dies."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 300  # characters of the engine's own words in a reason
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
STOPPED = tuple(
    code
    for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    for code in (-s, 128 + s)
)

# What a running engine's log says when it will not live; harmless tracebacks are not among it.
FATAL = re.compile(
    r"\b(?:Scheduler|DataParallelController|DetokenizerManager|TokenizerManager|TpModelWorkerClient|"
    r"MultiTokenizerRouter|MultiDetokenizerRouter|EngineCore|WorkerProc) hit an exception\b"
    r"|Received sigquit from a child process|Triggering SIGQUIT"
    r"|Capture cuda graph failed"
    r"|Rank \d+ scheduler (?:is dead|died)"
    r"|Watchdog caught collective operation timeout"
    r"|[Ww]atchdog timeout \((?!.*self\.soft=True)"
    r"|error while attempting to bind on address"
    r"|Engine core initialization failed|EngineCore (?:failed to start|encountered a fatal error)"
    r"|WorkerProc (?:failed to start|initialization failed)|EngineDeadError"
    r"|^Fatal Python error: |^terminate called after throwing "
    r"|^(?:\(.*?\) )?(?:ERROR .*?\] )?torch\.(?:cuda\.)?OutOfMemoryError: ",
    re.M,
)
EXCEPTION = re.compile(
    r"^(?:\([^)]*\) )?(?:\[rank\d+\]: )?(?:ERROR [^\]]*\] )?(?:.*?hit an exception: )?"
    r"((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception)): ?(.*)$",
    re.M,
)
# These only say that another process of the engine failed; that one's words are the reason.
SECOND_HAND = re.compile(
    r"Engine core initialization failed|EngineCore encountered|EngineDeadError|"
    r"WorkerProc initialization failed|scheduler (?:is dead|died)|Connection closed by peer|"
    r"ncclRemoteError|ranks that didn't finish loading"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """An engine's end as seen from outside."""

    exit_code: int | None  # minus the signal's number when killed, None while it still runs
    log: str  # the end of what it printed
    ready: bool = False  # it had answered before
    fixed_flags: Sequence[str] = ()  # of every trial; they are not the candidate's fault
    oom_kills: int = 0  # by the kernel, on this machine, since the launch

    @property
    def killed(self) -> bool:
        """True when it was killed without having announced its end before.

        A crashed worker makes SGLang's main process kill itself; then the log names the crash.
        """
        return self.exit_code in KILLED and not fatal(self.log)


def fatal(text: str) -> bool:
    """Say whether this piece of a running engine's log means that the engine will not live."""
    return FATAL.search(text) is not None


def last_exception(log: str) -> tuple[str, str] | None:
    """Return the name and the words of the last exception that is not about another one."""
    found: list[tuple[str, str]] = EXCEPTION.findall(log)
    own = [(name, said) for name, said in found if not SECOND_HAND.search(f"{name}: {said}")]
    return (own[-1][0].rpartition(".")[2], own[-1][1]) if own else None


def last_line(log: str) -> str:
    """Return the last line that says something."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"'{short(lines[-1])}'" if lines else "(it printed nothing)"


def how(code: int) -> str:
    """Say how a process with this exit code ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def short(text: str) -> str:
    """Return *text* on one line, and not longer than a reason should be."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."
