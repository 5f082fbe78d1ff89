"""What an emulated engine can be told to do wrong: words in, frozen values out.

A fault is written KIND:key=value,... after `--emulated-fault`. Every kind is a class here: its
docstring is its line in the help, its fields are its keys. `misbehaviour.py` acts them out.
Seconds are of the wall clock, whatever the emulated speed.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, TypeVar

LEAST = {"after": 0, "seconds": 0, "code": 0, "requests": 0}  # of all other keys: 1
LARGEST_EXIT_CODE = 255


class FaultError(ValueError):
    """The words do not name a fault; the message is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong on purpose."""

    def __str__(self) -> str:
        """Return the words that ask for it."""
        keys = ",".join(f"{f.name}={_plain(getattr(self, f.name))}" for f in fields(self))
        return NAMES[type(self)] + (f":{keys}" if keys else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class DieAtStart(Fault):
    """The process ends while it starts, *after* seconds, with exit code *code*."""

    after: float = 0.0
    code: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HangInStartup(Fault):
    """It never listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenLate(Fault):
    """It listens *after* seconds later than it would."""

    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverReady(Fault):
    """It listens, and answers 503 for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyFor(Fault):
    """It listens, answers 503 for *seconds*, and is well from then on."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FillLog(Fault):
    """It writes *mib* MiB into its log while it starts, in lines of *width* characters."""

    mib: int = 64
    width: int = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoreSigterm(Fault):
    """It does not end when it is asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan(Fault):
    """It leaves a grandchild in a session of its own, which ignores SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clamp(Fault):
    """It runs *max_running_requests* at most, and says so only where SGLang would."""

    max_running_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherModel(Fault):
    """It says that it serves another model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveSharedMemory(Fault):
    """It holds a file in shared memory, as SGLang does, and leaves it there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashAtRequest(Fault):
    """It crashes in the step after its *number*-th request came, with exit code 137."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HangDying(Fault):
    """It says that it crashed, and hangs: as it starts, or once *requests* came."""

    requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OomAtConcurrency(Fault):
    """It runs out of memory once *running* requests run, with exit code 137."""

    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EatMemory(Fault):
    """It takes *mib* MiB of the machine's memory in the step after its *number*-th request."""

    mib: int
    number: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInStream(Fault):
    """Every n-th stream is HTTP 200, an error object, [DONE]."""

    every: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StallStream(Fault):
    """Every n-th stream goes silent after *tokens* tokens and stays open."""

    every: int = 1
    tokens: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortOutput(Fault):
    """Every n-th stream ends after *tokens* tokens, however many were asked for."""

    every: int = 1
    tokens: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLeak(Fault):
    """100 steps later every step takes *factor* times as long, and so on."""

    factor: float


KINDS: dict[str, type[Fault]] = {
    "die_at_start": DieAtStart,
    "hang_in_startup": HangInStartup,
    "listen_late": ListenLate,
    "never_ready": NeverReady,
    "busy_for": BusyFor,
    "fill_log": FillLog,
    "ignore_sigterm": IgnoreSigterm,
    "orphan": Orphan,
    "clamp": Clamp,
    "other_model": OtherModel,
    "leave_shared_memory": LeaveSharedMemory,
    "crash_at_request": CrashAtRequest,
    "hang_dying": HangDying,
    "oom_at_concurrency": OomAtConcurrency,
    "eat_memory": EatMemory,
    "error_in_stream": ErrorInStream,
    "stall_stream": StallStream,
    "short_output": ShortOutput,
    "slow_leak": SlowLeak,
}
NAMES = {kind: name for name, kind in KINDS.items()}

Kind = TypeVar("Kind", bound=Fault)


def read_fault(words: str) -> Fault:
    """Return the fault that *words* ask for.

    Raises:
        FaultError: there is no such kind or key, a key is missing, or a value makes no sense.
    """
    name, _, listed = words.partition(":")
    if name not in KINDS:
        raise FaultError(f"a fault must be one of {', '.join(KINDS)}, found {name!r}")
    kind = KINDS[name]
    given = dict(_pair(name, pair) for pair in listed.split(",") if listed)
    keys = {f.name: f for f in fields(kind)}
    if len(given) < listed.count("="):
        raise FaultError(f"{name} takes each key once, found {listed!r}")
    for key in given.keys() - keys.keys():
        raise FaultError(f"{name} has {_list(keys)}, found {key!r}")
    for key in (k for k, f in keys.items() if f.default is MISSING and k not in given):
        raise FaultError(f"{name} needs {key}, as in {_example(name, keys)}")
    return kind(**{key: _value(name, keys[key], text) for key, text in given.items()})


def find(faults: Sequence[Fault], kind: type[Kind]) -> Kind | None:
    """Return the last of *faults* that is of this *kind*."""
    return next((fault for fault in reversed(faults) if isinstance(fault, kind)), None)


def listing() -> str:
    """Return the kinds for the help: what is to be written, and what it does."""
    lines = []
    for name, kind in KINDS.items():
        lines.append(f"  {_example(name, {f.name: f for f in fields(kind)})}")
        lines.append("      " + re.sub(r"\*(\w+)\*", lambda m: m[1].upper(), str(kind.__doc__)))
    return "\n".join(lines)


def _pair(name: str, pair: str) -> tuple[str, str]:
    key, equals, text = pair.partition("=")
    if not equals:
        raise FaultError(f"{name} takes key=value, found {pair!r}")
    return key, text


def _value(name: str, key: "Field[Any]", text: str) -> float:
    whole, least = key.type is int, LEAST.get(key.name, 1)
    most = LARGEST_EXIT_CODE if key.name == "code" else math.inf
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if least <= value <= most and math.isfinite(value):
        return value
    what = "a whole number" if whole else "a number"
    limit = f"from {least} to {most}" if math.isfinite(most) else f"of at least {least}"
    raise FaultError(f"{name}: {key.name} must be {what} {limit}, found {text!r}")


def _list(keys: "dict[str, Field[Any]]") -> str:
    return f"the keys {', '.join(keys)}" if keys else "no keys"


def _example(name: str, keys: "dict[str, Field[Any]]") -> str:
    given = ",".join(f"{k}={_shown(f)}" for k, f in keys.items())
    return name + (f":{given}" if given else "")


def _shown(key: "Field[Any]") -> str:
    if key.default is not MISSING:
        return _plain(key.default)
    return "N" if key.type is int else "X"


def _plain(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
