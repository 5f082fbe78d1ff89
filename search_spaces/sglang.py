"""SGLang's knobs as data: what each may be, the flags it becomes, and names that are not SGLang's.

Facts are those of SGLang 0.5.23. A knob that is not in the table is written as the flag itself,
with its two dashes (`"--stream-interval"`), so that a misspelt knob is never taken for a flag.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from search_spaces.candidate import Candidate
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
    """Say in words why *name* is not a knob: neither in the table nor a flag of SGLang."""
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
        _value_problem(KNOBS[name], value) for name, value in candidate.items if name in KNOBS
    )
    return [problem for problem in checks if problem is not None]


def space(parameters: Sequence[Parameter], fixed_flags: Sequence[str] = ()) -> SearchSpace:
    """Return the space of *parameters* beside the engine's *fixed_flags*, with SGLang's rules."""
    return SearchSpace(parameters=tuple(parameters), rules=rules(fixed_flags))


def rules(fixed_flags: Sequence[str]) -> tuple[Rule, ...]:
    """Return what SGLang demands of several knobs at once, given the *fixed_flags*."""
    page = _fixed_number(fixed_flags, "--page-size", 1)
    chunk = _fixed_number(fixed_flags, "--chunked-prefill-size", 0)  # -1: no chunks
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
            says="page_size must divide token_budget",
            holds=lambda c: (
                max(_number(c, "token_budget", chunk), 0) % _number(c, "page_size", page) == 0
            ),
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
    if knob.least is not None and value < knob.least:
        why = f": {knob.why_not_less}" if knob.why_not_less else ""
        return f"{knob.name} must be at least {knob.least:g}, found {value:g}{why}"
    if knob.most is not None and value > knob.most:
        return f"{knob.name} must be at most {knob.most:g}, found {value:g}"
    return None


_TYPE_NAMES: dict[type, str] = {int: "a whole number", float: "a number", str: "a word"}


def _number(candidate: Candidate, name: str, absent: int) -> int:
    return int(candidate[name]) if name in candidate else absent


def _policy(candidate: Candidate, absent: str = "fcfs") -> str:
    return str(candidate["schedule_policy"]) if "schedule_policy" in candidate else absent


def _is_on(candidate: Candidate, flag: str, fixed_flags: Sequence[str]) -> bool:
    return flag in fixed_flags or (flag in candidate and bool(candidate[flag]))


def fixed_problems(words: Sequence[str]) -> list[str]:
    """Say in words which flags that never change hold values that SGLang cannot take."""
    found = []
    for knob in (*KNOBS.values(), *SIZES):
        text = fixed_value(words, knob.flag)
        if text is None:
            continue
        try:
            value = knob.type(text)
        except ValueError:
            found.append(f"{knob.flag} must be {_TYPE_NAMES[knob.type]}, found {text!r}")
            continue
        off = knob.name == "token_budget" and float(value) < 1  # fixed, chunks may be off
        problem = None if off else _value_problem(knob, value)
        found += [] if problem is None else [problem.replace(knob.name, knob.flag, 1)]
    return found


def _fixed_number(words: Sequence[str], flag: str, absent: int) -> int:
    text = fixed_value(words, flag) or ""
    return int(text) if text.removeprefix("-").isdecimal() and int(text) else absent


def fixed_value(words: Sequence[str], flag: str) -> str | None:
    """Return the value that *words* give *flag*, None when they do not name it."""
    for i, word in enumerate(words):
        if word == flag:
            return words[i + 1] if i + 1 < len(words) else ""
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None
