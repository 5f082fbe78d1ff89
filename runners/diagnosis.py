"""Why an engine ended: from its exit code and the end of its log to one sentence and a verdict.

The verdict is the kind of error: reject the candidate, retry (the machine failed), or stop the
study (a lasting fault: no candidate could run). Who killed an engine that says nothing itself?
The kernel, for want of memory, blames the candidate; anybody else does not.
"""

from collections.abc import Sequence

from runners.cause import Cause
from runners.container_verdicts import container_verdict
from runners.diagnosis_rules import echo, known
from runners.ending import KILLED, STOPPED, Ending, fatal, how, last_exception, last_line, short
from runners.errors import CandidateRejectedError, MachineFaultError, RunnerError
from runners.memory_verdicts import host_memory_full

__all__ = ["Ending", "diagnose", "fatal", "last_line", "never_ready"]

# By these, engines refuse a setting; by others, they crash.
REFUSALS = ("AssertionError", "ValueError", "NotImplementedError", "ValidationError")


def diagnose(ending: Ending) -> RunnerError:
    """Return the error that says why the engine ended and what to do about it."""
    verdict = container_verdict(ending.log)
    if verdict is None and not ending.killed:
        verdict = _by_its_log(ending)
    return verdict or _without_a_word(ending)


def never_ready(
    log: str,
    limit_s: float,
    fixed_flags: Sequence[str] = (),
    *,
    field: str = "startup_timeout_s",
    doing: str = "starting",
) -> RunnerError:
    """Return the error for an engine that runs, or hangs as it dies, and does not answer."""
    ending = Ending(exit_code=None, log=log, fixed_flags=fixed_flags)
    verdict = _by_its_log(ending) if fatal(log) else known(ending)
    return verdict or CandidateRejectedError(
        f"the engine was not ready{_over(field, limit_s)}; its last line: {last_line(log)}; it "
        f"was {doing}; raise engine.{field} if it was still at work",
        cause=Cause.NOT_READY,
    )


def _over(field: str, limit_s: float) -> str:
    if field == "startup_stall_s":
        return f", and nothing moved for {limit_s:g} s, not its log and no reading of files"
    return f" within {limit_s:g} s"


def _by_its_log(ending: Ending) -> RunnerError | None:
    if (verdict := known(ending)) is not None:
        return verdict
    if (found := last_exception(ending.log)) is not None:
        return _exception(*found, ending)
    return echo(ending)


def _exception(name: str, said: str, ending: Ending) -> RunnerError:
    words = short(f"{name}: {said}" if said else name)
    if ending.ready:
        return CandidateRejectedError(
            f"the engine died under load: {words}; its engine.log says where", cause=Cause.CRASH
        )
    if name in REFUSALS:
        return CandidateRejectedError(
            f"the engine refused the setting: {words}", cause=Cause.BAD_VALUE
        )
    return CandidateRejectedError(
        f"the engine crashed while it started: {words}; its engine.log says where",
        cause=Cause.CRASH,
    )


def _without_a_word(ending: Ending) -> RunnerError:
    code = ending.exit_code
    if code is None:
        return MachineFaultError(
            f"the engine announces its end and gives no reason; its last line: "
            f"{last_line(ending.log)}"
        )
    if code in KILLED and ending.oom_kills > 0:
        return host_memory_full()
    if code in KILLED or code in STOPPED:
        return MachineFaultError(
            f"the engine was stopped from outside ({how(code)}); its log gives no reason",
            cause=Cause.KILLED,
        )
    if code < 0:
        return CandidateRejectedError(
            f"the engine crashed ({how(code)}); its last line: {last_line(ending.log)}",
            cause=Cause.CRASH,
        )
    return MachineFaultError(
        f"the engine ended ({how(code)}) and gave no reason; its last line: "
        f"{last_line(ending.log)}"
    )
