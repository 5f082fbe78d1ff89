"""Turning what is wrong with a user's input into one sentence each."""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


class BadInputError(Exception):
    """The user's input is wrong; the message says what must hold, what was found, and where."""


def explain(path: Path, error: "ValidationError", model: type[BaseModel]) -> Iterator[str]:
    """Yield one sentence for each thing pydantic found wrong in the file at *path*.

    *model* is what the whole file should have been; its keys are the hints for misspelt ones.
    """
    seen = set()
    for details in error.errors(include_url=False):
        sentence = f"{path}: {_sentence(details, model)}"
        if sentence not in seen:
            seen.add(sentence)
            yield sentence


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
            return f"{place}: {says}" if place else says
        case _:
            says = details["msg"].replace("Input should be", "must be")
            return f"{place} {says}, found {found}"


def _place(loc: tuple[int | str, ...]) -> str:
    """Join the keys, leaving out the names pydantic gives to the arms of a union."""
    arms = {"float", "int", "bool", "str", "Bound", "Range"}
    keys = [part for part in loc if part not in arms and not str(part).startswith("tuple[")]
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text


def _hint(loc: tuple[int | str, ...], model: type[BaseModel]) -> str:
    known = _known_keys(loc[:-1], model)
    close = get_close_matches(str(loc[-1]), known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known here are {', '.join(known)}" if known else ""


def _known_keys(loc: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    for part in loc:
        if isinstance(part, int) or part in {"Bound", "Range"}:
            continue
        field = model.model_fields.get(part)
        inner = None if field is None else _model_in(field.annotation)
        if inner is None:
            return []
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
