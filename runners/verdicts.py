"""Verdicts on a dying engine's words: reject the candidate, retry, or stop the study."""

import re
from collections.abc import Callable, Sequence

from runners.cause import Cause, Direction
from runners.ending import Ending, short
from runners.errors import CandidateRejectedError, MachineFaultError, RunnerError
from runners.memory_verdicts import advice, host_memory_full
from search_spaces.sglang import wrong_names

Verdict = Callable[[re.Match[str], Ending], RunnerError]
Row = tuple[str, Verdict]  # a text in the log, and what it means


def unknown_flags(match: re.Match[str], ending: Ending) -> RunnerError:
    """Return the verdict for words that the engine does not know."""
    names = [w.partition("=")[0] for w in match[1].split() if w.startswith("-")]
    said = wrong_names(names) or [
        f"the engine does not know {', '.join(names) or short(match[1])}"
    ]
    return _blame(Cause.BAD_FLAG, names, "; ".join(said), ending)


def refused_value(match: re.Match[str], ending: Ending) -> RunnerError:
    """Return the verdict for a value that a flag cannot have."""
    said = f"the engine refused a value of {match[1]}: {short(match[2])}"
    return _blame(Cause.BAD_VALUE, match[1].split("/"), said, ending)


def unknown_policy(match: re.Match[str], ending: Ending) -> RunnerError:
    """Return the verdict for a policy that the engine's own list names in vain."""
    said = f"SGLang lists the schedule policy {match[1]}, but does not have it"
    return _blame(Cause.BAD_VALUE, ["--schedule-policy"], said, ending)


def ambiguous(match: re.Match[str], ending: Ending) -> RunnerError:
    """Return the verdict for a flag that is the beginning of several."""
    said = f"the engine does not know {match[1]}: it could mean {short(match[2])}"
    return _blame(Cause.BAD_FLAG, [match[1]], said, ending)


def _blame(cause: Cause, names: Sequence[str], said: str, ending: Ending) -> RunnerError:
    fixed = {word.partition("=")[0] for word in ending.fixed_flags}
    if fixed & set(names):
        return MachineFaultError(f"{said} (it stands in engine.flags)", lasting=True, cause=cause)
    return CandidateRejectedError(said, cause=cause)


def worker_killed(_: re.Match[str], ending: Ending) -> RunnerError:
    """Return the verdict for a worker's SIGKILL: the kernel's, or somebody's."""
    if ending.oom_kills > 0:
        return host_memory_full("the kernel killed a worker of the engine")
    return MachineFaultError(
        "a worker of the engine was killed from outside (SIGKILL); its log gives no reason",
        cause=Cause.KILLED,
    )


def links(match: re.Match[str], ending: Ending) -> RunnerError:
    """Return the verdict for workers that lost each other, or their GPUs."""
    if ending.oom_kills > 0:
        return host_memory_full("the kernel killed a worker of the engine")
    return MachineFaultError(
        f"the GPU or its links failed: {short(match[0])}; look for Xid in the kernel's log if it "
        "comes again",
        cause=Cause.LINKS,
    )


def reject(cause: Cause, sentence: str, **directions: Direction) -> Verdict:
    """Blame the candidate; the advice is what *directions* say."""
    hint = f": {advice(directions)}" if directions else ""
    return lambda match, _: CandidateRejectedError(
        _filled(sentence, match) + hint, cause=cause, directions=directions
    )


def retry(cause: Cause, sentence: str) -> Verdict:
    """Blame the machine, for now."""
    return lambda match, _: MachineFaultError(_filled(sentence, match), cause=cause)


def stop(cause: Cause, sentence: str) -> Verdict:
    """Blame the machine for good: no candidate could run."""
    return lambda match, _: MachineFaultError(_filled(sentence, match), lasting=True, cause=cause)


def _filled(sentence: str, match: re.Match[str]) -> str:
    return sentence.replace("{}", short(match[match.lastindex or 0]))
