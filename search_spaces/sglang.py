"""SGLang's knobs as data: what each may be, the flags it becomes, and names that are not SGLang's.

Facts are those of SGLang 0.5.23. A setting that is not in the table is written as the flag itself,
with its two dashes (`"--stream-interval"`), so that a misspelt knob is never taken for a flag.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from search_spaces.candidate import Candidate
from search_spaces.flag_values import fixed_number, fixed_value, given_twice
from search_spaces.parameter import Parameter, Value
from search_spaces.space import Rule, SearchSpace

DEFAULT_MAX_PREFILL_TOKENS = 16384

POLICIES = (
    "fcfs",
    "lpm",
    "dfs-weight",
    "lof",
    "hrrn",
    "random",
    "routing-key",
    "shortest-prefill-first",
)
CACHE_AWARE_POLICIES = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
QUEUE_BOUND_POLICIES = ("lpm", "hrrn")  # act as fcfs while more than MOST_WAITING requests wait
MOST_WAITING = 128
PRIORITY_POLICIES = ("fcfs", "lof")  # what --enable-priority-scheduling goes with


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One knob of the table: the type of its values, its sane limits, and its flag."""

    name: str
    flag: str
    type: type[int] | type[float] | type[str]
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    why_not_less: str = ""


KNOBS = {
    knob.name: knob
    for knob in (
        Knob(name="schedule_policy", flag="--schedule-policy", type=str, choices=POLICIES),
        Knob(
            name="max_running_requests",
            flag="--max-running-requests",
            type=int,
            least=1,
            why_not_less="SGLang would silently run 1",
        ),
        Knob(name="token_budget", flag="--chunked-prefill-size", type=int, least=1),
        Knob(
            name="mem_fraction_static",
            flag="--mem-fraction-static",
            type=float,
            least=0.05,
            most=0.99,
            why_not_less="SGLang does not check this value and would die while it starts",
        ),
        Knob(
            name="schedule_conservativeness",
            flag="--schedule-conservativeness",
            type=float,
            least=0,
        ),
        Knob(name="page_size", flag="--page-size", type=int, least=1),
    )
}

CHUNK = KNOBS["token_budget"].flag

# What decides how many GPUs a launch takes.
SIZES = tuple(
    Knob(name=name, flag=f"--{name}", type=int, least=1)
    for name in ("tp-size", "pp-size", "dp-size")
)

# Flags that articles and other engines name, and what SGLang has instead.
WRONG_NAMES = {
    "--max-num-batched-tokens": "vLLM's name; SGLang has --chunked-prefill-size and "
    "--max-prefill-tokens (the knob token_budget sets both)",
    "--max-num-seqs": "vLLM's name; SGLang has --max-running-requests",
    "--gpu-memory-utilization": "vLLM's name; SGLang has --mem-fraction-static, which counts "
    "weights and KV cache only: do not copy the number",
    "--enable-prefix-caching": "vLLM's name; SGLang's prefix cache is on unless "
    "--disable-radix-cache is given",
    "--radix-trees": "the radix cache is on by default; --disable-radix-cache turns it off",
    "--cuda-graph-max-bs": "renamed to --cuda-graph-max-bs-decode and --cuda-graph-max-bs-prefill",
    "--cuda-graph-bs": "renamed to --cuda-graph-bs-decode and --cuda-graph-bs-prefill",
    "--tp": "an abbreviation; write --tp-size",
    "--dp": "an abbreviation; write --dp-size",
    "--pp": "an abbreviation; write --pp-size",
}


def flags(candidate: Candidate) -> list[str]:
    """Return the command-line words that ask SGLang for *candidate*, in a fixed order."""
    return [word for name, value in candidate.items for word in _flag(name, value)]


def flag_names(knob: str) -> tuple[str, ...]:
    """Return the flags that *knob* sets."""
    if knob == "token_budget":
        return ("--chunked-prefill-size", "--max-prefill-tokens")
    return (KNOBS[knob].flag,) if knob in KNOBS else (knob,)


def wrong_names(words: Sequence[str]) -> list[str]:
    """Say for each flag in *words* that SGLang does not have what it has instead."""
    named = (word.partition("=")[0] for word in words)
    return [f"SGLang has no flag {n}: {WRONG_NAMES[n]}" for n in named if n in WRONG_NAMES]


def name_problems(name: str) -> list[str]:
    """Say in words why *name* is not a knob: neither in the table nor a flag beside it.

    The chunk's flag may be one: its -1 and 0 turn chunking off, which the knob cannot.
    """
    knob = _knob(name)
    if knob is not None and name not in (knob.name, CHUNK):
        return [f"the knob {knob.name} sets it: write {knob.name}"]
    if name.startswith("--"):
        return wrong_names([name])
    if name not in KNOBS:
        return [f"{name} is not a knob of SGLang; {_what_was_meant(name)}"]
    return []


def _what_was_meant(name: str) -> str:
    if elsewhere := WRONG_NAMES.get(f"--{name.replace('_', '-')}"):
        return elsewhere
    if close := get_close_matches(name, KNOBS, n=1):
        return f"did you mean {close[0]!r}?"
    return f"known are {', '.join(KNOBS)}, or a flag such as '--NAME'"


def value_problems(candidate: Candidate) -> list[str]:
    """Say in words which knobs of *candidate* hold values that SGLang cannot take."""
    checks = (
        _named_problem(knob, name, value)
        for name, value in candidate.items
        if (knob := _knob(name)) is not None
    )
    return [problem for problem in checks if problem is not None]


def _named_problem(knob: Knob, name: str, value: Value) -> str | None:
    """Check what *knob* is given under *name*, its own or its flag's; the chunk's may be off."""
    if name == CHUNK and type(value) is int and value < 1:
        return None
    problem = _value_problem(knob, value)
    return None if problem is None else problem.replace(knob.name, name, 1)


def _knob(name: str) -> Knob | None:
    return next((knob for knob in KNOBS.values() if name in (knob.name, knob.flag)), None)


def space(parameters: Sequence[Parameter], fixed_flags: Sequence[str] = ()) -> SearchSpace:
    """Return the space of *parameters* beside the engine's *fixed_flags*, with SGLang's rules."""
    return SearchSpace(parameters=tuple(parameters), rules=rules(fixed_flags))


def rules(fixed_flags: Sequence[str]) -> tuple[Rule, ...]:
    """Return what SGLang demands of several knobs at once, given the *fixed_flags*."""
    page = fixed_number(fixed_flags, "--page-size", 1) or 1
    chunk = fixed_number(fixed_flags, CHUNK, 0)  # -1: no chunks
    cache_off = "--disable-radix-cache" in fixed_flags
    fixed_policy = fixed_value(fixed_flags, "--schedule-policy") or "fcfs"
    return (
        Rule(
            says="--enable-priority-scheduling needs schedule_policy fcfs or lof",
            holds=lambda c: (
                not _is_on(c, "--enable-priority-scheduling", fixed_flags)
                or _policy(c, fixed_policy) in PRIORITY_POLICIES
            ),
        ),
        Rule(
            says=f"{_written('page_size', fixed_flags)} must divide "
            + _written("token_budget", fixed_flags),
            holds=lambda c: _chunk(c, chunk) % _number(c, "page_size", page) == 0,
        ),
        Rule(
            says="a cache-aware schedule_policy needs the radix cache, which --disable-radix-cache"
            " turns off: SGLang would run fcfs instead",
            holds=lambda c: not (cache_off and _policy(c, fixed_policy) in CACHE_AWARE_POLICIES),
        ),
    )


def _flag(name: str, value: Value) -> list[str]:
    if name == "token_budget":
        most = max(int(value), DEFAULT_MAX_PREFILL_TOKENS)
        return ["--chunked-prefill-size", str(value), "--max-prefill-tokens", str(most)]
    flag = KNOBS[name].flag if name in KNOBS else name
    if isinstance(value, bool):
        return [flag] if value else []
    return [flag, str(value)]


def _value_problem(knob: Knob, value: Value) -> str | None:
    if knob.choices:
        if value in knob.choices:
            return None
        known = ", ".join(knob.choices)
        hint = " (SGLang lists it, but dies when it starts)" if value == "priority" else ""
        return f"{knob.name} must be one of {known}, found {value!r}{hint}"
    if type(value) is not knob.type and not (knob.type is float and type(value) is int):
        return f"{knob.name} must be {_TYPE_NAMES[knob.type]}, found {value!r}"
    return _limit_problem(knob, float(value))


def _limit_problem(knob: Knob, value: float) -> str | None:
    if not math.isfinite(value):
        return f"{knob.name} must be a finite number, found {value}"
    if knob.least is not None and value < knob.least:
        why = f": {knob.why_not_less}" if knob.why_not_less else ""
        return f"{knob.name} must be at least {knob.least:g}, found {value:g}{why}"
    if knob.most is not None and value > knob.most:
        return f"{knob.name} must be at most {knob.most:g}, found {value:g}"
    return None


_TYPE_NAMES: dict[type, str] = {int: "a whole number", float: "a number", str: "a word"}


def _number(candidate: Candidate, name: str, absent: int) -> int:
    return int(candidate[name]) if name in candidate else absent


def _chunk(candidate: Candidate, absent: int) -> int:
    return max(_number(candidate, "token_budget", _number(candidate, CHUNK, absent)), 0)


def _written(name: str, fixed_flags: Sequence[str]) -> str:
    """Return the word that the user wrote: the flag when it stands in *fixed_flags*."""
    flag = KNOBS[name].flag
    return name if fixed_value(fixed_flags, flag) is None else flag


def _policy(candidate: Candidate, absent: str = "fcfs") -> str:
    return str(candidate["schedule_policy"]) if "schedule_policy" in candidate else absent


def _is_on(candidate: Candidate, flag: str, fixed_flags: Sequence[str]) -> bool:
    return flag in fixed_flags or (flag in candidate and bool(candidate[flag]))


def fixed_problems(words: Sequence[str]) -> list[str]:
    """Say in words which flags that never change hold values that SGLang cannot take."""
    found = given_twice(words)
    for knob in (*KNOBS.values(), *SIZES):
        text = fixed_value(words, knob.flag)
        if text is None:
            continue
        try:
            value = knob.type(text)
        except ValueError:
            found.append(f"{knob.flag} must be {_TYPE_NAMES[knob.type]}, found {text!r}")
            continue
        problem = _named_problem(knob, knob.flag, value)
        found += [] if problem is None else [problem]
    return found
