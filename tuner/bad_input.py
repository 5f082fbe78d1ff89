"""Turning what is wrong with a user's input into one sentence each."""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from pydantic import BaseModel

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


WORDS = {  # pydantic's -> those of a study file
    "Input should be": "must be",
    "String should": "must",
    "List should": "must",
    "Tuple should": "must",
    "Dictionary should": "must",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "a valid array": "a list",
    "a valid list": "a list",
    "a valid tuple": "a list",
    "an object": "a table",
    "a valid dictionary": "a table",
    "a valid boolean": "true or false",
    "a valid string": "a text",
    "a valid number": "a number",
    "a valid integer": "a whole number",
}


class BadInputError(Exception):
    """The user's input is wrong; the message says what must hold, what was found, and where."""


def explain(path: Path, error: "ValidationError", model: type[BaseModel]) -> Iterator[str]:
    """Yield one sentence for each thing pydantic found wrong in the file at *path*.

    *model* is what the whole file should have been; its keys are the hints for misspelt ones.
    """
    placed: dict[str, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        placed.setdefault(_place(details["loc"]), []).append(details)
    for place, found in placed.items():
        inner = any(other.startswith((f"{place}.", f"{place}[")) for other in placed)
        for sentence in dict.fromkeys(_sentences(found, model, inner=inner)):
            yield f"{path}: {sentence}"


def _sentences(
    found: Sequence["ErrorDetails"], model: type[BaseModel], *, inner: bool
) -> Iterator[str]:
    """Yield what is wrong at one place; *inner* when more is wrong inside of it.

    Where a value may be of several types, pydantic complains for each: those are one sentence, and
    none at all when one of the types was meant and its contents are wrong.
    """
    types = [details for details in found if details["type"].endswith("_type")]
    others = [details for details in found if details not in types]
    yield from (_sentence(details, model) for details in others)
    if types and not others and not inner:
        place, value = _place(types[0]["loc"]), _short(types[0]["input"])
        musts = dict.fromkeys(_law(details).removeprefix("must be ") for details in types)
        yield f"{place} must be {' or '.join(musts)}, found {value}"


def _sentence(details: "ErrorDetails", model: type[BaseModel]) -> str:
    place = _place(details["loc"])
    found = _short(details["input"])
    match details["type"]:
        case "missing":
            return f"{place} is missing"
        case "extra_forbidden":
            return f"{place} is not a key this tool knows{_hint(details['loc'], model)}"
        case "value_error":
            says = str(details["ctx"]["error"])
            names_key = re.split(r"\W", says, maxsplit=1)[0] in _known_keys(details["loc"], model)
            return f"{place}{'.' if names_key else ': '}{says}" if place else says
        case _:
            return f"{place} {_law(details)}, found {found}"


def _law(details: "ErrorDetails") -> str:
    """Say in the words of a study file what must hold."""
    says = details["msg"]
    for theirs, ours in WORDS.items():
        says = says.replace(theirs, ours)
    return says


def _is_arm(part: int | str) -> bool:
    """Tell the names pydantic gives to the arms of a union from keys."""
    return part in {"float", "int", "bool", "str", "Bound", "Range"} or "[" in str(part)


def _place(loc: tuple[int | str, ...]) -> str:
    text = ""
    for key in (part for part in loc if not _is_arm(part)):
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text


def _hint(loc: tuple[int | str, ...], model: type[BaseModel]) -> str:
    known = _known_keys(loc[:-1], model)
    close = get_close_matches(str(loc[-1]), known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known here are {', '.join(known)}" if known else ""


def _known_keys(loc: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    free = False  # the next key is the user's own
    for part in loc:
        if isinstance(part, int) or free or _is_arm(part):
            free = False
            continue
        field = model.model_fields.get(part)
        inner = None if field is None else _model_in(field.annotation)
        if field is None or inner is None:
            return []
        free = get_origin(field.annotation) is dict
        model = inner
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_in(arg) for arg in getattr(annotation, "__args__", ()))
    return next((model for model in inner if model is not None), None)


def _short(value: object, most: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."
