"""Whether words of a command line are flags of an engine, by its own table of options."""

import difflib
import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, Self

from search_spaces.sglang import WRONG_NAMES

NUMBERS: dict[str, type[int] | type[float]] = {"int": int, "float": float}
MOST_CHOICES_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of the engine's parser."""

    names: tuple[str, ...]
    values: str  # none, one, or some
    type: str  # the name of what makes a value of a word
    choices: tuple[str, ...] | None = None

    @classmethod
    def of(cls, data: dict[str, Any]) -> Self:
        """Read what `sglang_argument_probe.options` wrote."""
        choices = data["choices"]
        return cls(
            names=tuple(data["names"]),
            values=data["values"],
            type=data["type"],
            choices=None if choices is None else tuple(choices),
        )


def word_problems(options: Sequence[Option], words: Sequence[str]) -> list[str]:
    """Say in one sentence each which of *words* the engine does not have or cannot take."""
    by_name = {name: option for option in options for name in option.names}
    found: list[str] = []
    for name, values in _groups(words, by_name.keys()):
        option = by_name.get(name)
        if option is None:
            found.append(_unknown(name, tuple(by_name)))
        else:
            found.extend(_value_problems(name, option, values))
    return found


def _groups(words: Sequence[str], known: Set[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag with the words that follow it; what comes before the first is no flag's."""
    name, values = "", list[str]()
    for word in words:
        if not word.startswith("--") and word not in known:
            values.append(word)
            continue
        if name:
            yield name, values
        name, given, value = word.partition("=")
        values = [value] if given else []
    if name:
        yield name, values


def _unknown(name: str, known: Sequence[str]) -> str:
    if name in WRONG_NAMES:
        return f"the installed engine has no flag {name}: {WRONG_NAMES[name]}"
    longer = [flag for flag in known if flag.startswith(name)]
    if longer:
        return f"{name} is an abbreviation, write the flag in full: {' or '.join(longer)}"
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.75)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"the installed engine has no flag {name}{hint}"


def _value_problems(name: str, option: Option, values: Sequence[str]) -> Iterator[str]:
    if option.values == "none" and values:
        yield f"{name} takes no value, found {values[0]!r}"
        return
    if option.values == "one" and len(values) != 1:
        yield f"{name} takes one value, found {' '.join(values) or 'none'}"
        return
    for value in values:
        if option.choices is not None and value not in option.choices:
            yield f"{name} must be {_listed(option.choices)}, found {value!r}"
        elif option.choices is None and not _is_number(option.type, value):
            what = "a whole number" if option.type == "int" else "a number"
            yield f"{name} must be {what}, found {value!r}"


def _listed(choices: Sequence[str]) -> str:
    shown = ", ".join(choices[:MOST_CHOICES_SHOWN])
    return f"one of {shown}" + (", ..." if len(choices) > MOST_CHOICES_SHOWN else "")


def _is_number(type_name: str, word: str) -> bool:
    number = NUMBERS.get(type_name)
    if number is None:
        return True
    try:
        return not math.isnan(number(word))
    except ValueError:
        return False
