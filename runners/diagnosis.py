"""Why an engine ended: from its exit code and the end of its log to one sentence and a verdict.

The verdict is the kind of error: reject the candidate, retry (the machine failed), or stop the
study (a lasting fault: no candidate could run). Who killed an engine that says nothing itself?
The kernel, for want of memory, blames the candidate; anybody else does not.
"""

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runners.errors import CandidateRejectedError, MachineFaultError, RunnerError
from search_spaces.sglang import wrong_names

LONGEST = 300  # characters of the engine's own words in a reason
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
STOPPED = tuple(-s for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))
# A crashed worker makes SGLang's main process kill itself; then the log names the crash.
OWN_CRASH = re.compile(r"hit an exception|received sigquit|SIGQUIT received", re.IGNORECASE)
EXCEPTION = re.compile(
    r"^(?:.*?hit an exception: )?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): ?(.*)$", re.M
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """An engine's end as seen from outside."""

    exit_code: int  # minus the signal's number when killed
    log: str  # the end of what it printed
    ready: bool = False  # it had answered before
    fixed_flags: Sequence[str] = ()  # of every trial; they are not the candidate's fault
    oom_kills: int = 0  # by the kernel, on this machine, since the launch

    @property
    def killed(self) -> bool:
        """True when it was killed without having crashed before."""
        return self.exit_code in KILLED and OWN_CRASH.search(self.log) is None


def diagnose(ending: Ending) -> RunnerError:
    """Return the error that says why the engine ended and what to do about it."""
    if not ending.killed:
        if (known := _known(ending)) is not None:
            return known
        if (found := _exception(ending.log)) is not None:
            when = "died under load" if ending.ready else "refused the setting"
            return CandidateRejectedError(f"the engine {when}: {_short(found)}")
    return _without_a_word(ending)


def never_ready(log: str, limit_s: float, fixed_flags: Sequence[str] = ()) -> RunnerError:
    """Return the error for an engine that runs, or hangs as it dies, and does not answer."""
    known = _known(Ending(exit_code=0, log=log, fixed_flags=fixed_flags))
    return known or CandidateRejectedError(
        f"the engine was not ready within {limit_s:g} s; its last line: {last_line(log)}; raise "
        "engine.startup_timeout_s if it was still loading"
    )


def fatal(text: str) -> bool:
    """Say whether this piece of a running engine's log means that the engine will not live."""
    return FATAL.search(text) is not None


def last_line(log: str) -> str:
    """Return the last line that says something."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"'{_short(lines[-1])}'" if lines else "(it printed nothing)"


Verdict = Callable[[re.Match[str], Ending], RunnerError]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a text in the log means."""

    pattern: re.Pattern[str]
    verdict: Verdict


def _unknown_flags(match: re.Match[str], ending: Ending) -> RunnerError:
    names = [w.partition("=")[0] for w in match[1].split() if w.startswith("-")]
    known = wrong_names(names)
    said = known or [f"the engine does not know {', '.join(names) or _short(match[1])}"]
    return _blame(names, "; ".join(said), ending)


def _refused_value(match: re.Match[str], ending: Ending) -> RunnerError:
    names = match[1].split("/")
    return _blame(names, f"the engine refused a value of {match[1]}: {_short(match[2])}", ending)


def _ambiguous(match: re.Match[str], ending: Ending) -> RunnerError:
    said = f"the engine does not know {match[1]}: it could mean {_short(match[2])}"
    return _blame([match[1]], said, ending)


def _blame(names: Sequence[str], said: str, ending: Ending) -> RunnerError:
    fixed = {word.partition("=")[0] for word in ending.fixed_flags}
    if fixed & set(names):
        return MachineFaultError(f"{said} (it stands in engine.flags)", lasting=True)
    return CandidateRejectedError(said)


def _no_room_for_cache(match: re.Match[str], _: Ending) -> RunnerError:
    least = re.search(r"above (\d*\.?\d+)", match[0])
    to = f" above {least[1]}" if least else ""
    return CandidateRejectedError(
        f"the weights leave no memory for the KV cache: raise mem_fraction_static{to}"
    )


def _out_of_memory(match: re.Match[str], ending: Ending) -> RunnerError:
    if ending.ready:
        where, hint = "under load", "lower mem_fraction_static or token_budget"
    elif "Capture cuda graph failed" in ending.log:
        where, hint = "while it captured its CUDA graphs", "lower mem_fraction_static"
    elif "Load weight end" in ending.log:
        where, hint = "while it set up its KV cache", "lower mem_fraction_static"
    else:
        where, hint = "while it loaded the weights", "the model needs more or larger GPUs"
    return CandidateRejectedError(f"the engine ran out of memory {where} ({match[0]}): {hint}")


def _reject(sentence: str) -> Verdict:
    return lambda match, _: CandidateRejectedError(_filled(sentence, match))


def _retry(sentence: str) -> Verdict:
    return lambda match, _: MachineFaultError(_filled(sentence, match))


def _stop(sentence: str) -> Verdict:
    return lambda match, _: MachineFaultError(_filled(sentence, match), lasting=True)


def _filled(sentence: str, match: re.Match[str]) -> str:
    return sentence.replace("{}", _short(match[match.lastindex or 0]))


def _rules(table: Sequence[tuple[str, Verdict]]) -> tuple[Rule, ...]:
    return tuple(Rule(re.compile(pattern, re.M), verdict) for pattern, verdict in table)


# The first that matches wins.
RULES = _rules(
    (
        (r"error: unrecognized arguments: (.+)$", _unknown_flags),
        (r"error: ambiguous option: (\S+) could match (.+)$", _ambiguous),
        (r"error: argument (\S+): (.+)$", _refused_value),
        (
            r"address already in use",
            _retry("the engine's port was taken by another process while it started"),
        ),
        (
            r"No module named '?sglang\b",
            _stop(
                "SGLang is not installed where engine.command points ({}): name the python of its "
                "environment there"
            ),
        ),
        (
            r"^.*(?:OSError|HFValidationError|RepositoryNotFoundError|GatedRepoError|"
            r"LocalEntryNotFoundError|OfflineModeIsEnabled)\b:? (.*(?:Repo id|repo|"
            r"model identifier|local folder|file named|connect|offline|outgoing traffic).*)$",
            _stop("the model cannot be loaded; check engine.model: {}"),
        ),
        (r"^emulated engine: error: (the emulated (?:hardware|model) must be .*)$", _stop("{}")),
        (
            r"^.*(No CUDA GPUs are available|Found no NVIDIA driver|driver on your system is too "
            r"old|driver version is insufficient|no kernel image is available).*$",
            _stop("the engine cannot use a GPU of this machine: {}"),
        ),
        (r"^.*(No space left on device).*$", _stop("the engine could not write: {}")),
        (
            r"^.*(uncorrectable ECC error|fallen off the bus|device is unavailable|"
            r"NCCL error|ncclSystemError|ncclInternalError).*$",
            _retry("the GPU or its links failed: {}"),
        ),
        (
            r"Loaded weights leave no GPU memory.*|Not enough memory\. Please try to increase.*",
            _no_room_for_cache,
        ),
        (
            r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory|can't allocate memory",
            _out_of_memory,
        ),
        (
            r"Unknown schedule_policy: policy='(.+?)'",
            _reject("SGLang lists the schedule policy {}, but does not have it"),
        ),
        (
            r"Capture cuda graph failed:? *(.+)$",
            _reject("the engine could not capture its CUDA graphs: {}"),
        ),
    )
)


def _known(ending: Ending) -> RunnerError | None:
    for rule in RULES:
        if (match := rule.pattern.search(ending.log)) is not None:
            return rule.verdict(match, ending)
    return None


def _exception(log: str) -> str | None:
    found = EXCEPTION.findall(log)
    if not found:
        return None
    name, sentence = found[-1]
    return f"{name.rpartition('.')[2]}: {sentence}" if sentence else str(name)


def _without_a_word(ending: Ending) -> RunnerError:
    code = ending.exit_code
    if code in KILLED and ending.oom_kills > 0:
        return CandidateRejectedError(
            "the kernel killed the engine because the machine's memory was full: lower "
            "mem_fraction_static, or give the KV pool a size with --max-total-tokens"
        )
    if code in KILLED or code in STOPPED:
        return MachineFaultError(
            f"the engine was stopped from outside ({_how(code)}); its log gives no reason"
        )
    if code < 0:
        return CandidateRejectedError(
            f"the engine crashed ({_how(code)}); its last line: {last_line(ending.log)}"
        )
    return MachineFaultError(
        f"the engine ended ({_how(code)}) and gave no reason; its last line: "
        f"{last_line(ending.log)}"
    )


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"signal {-code}, {signal.Signals(-code).name}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."
