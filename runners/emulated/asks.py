"""What clients ask for: the bodies of SGLang's three generating endpoints, read into one shape."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

LETTERS_PER_TOKEN = 4  # of the made-up tokenizer
COMPLETION_TOKENS, GENERATE_TOKENS = 16, 128  # when the client does not say


class BadRequestError(Exception):
    """The request cannot be served; the message is for the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request for tokens."""

    prompt: tuple[int, ...]
    output_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    model: str
    interval: int | None  # tokens per event, when the client chooses it


@dataclass(frozen=True, slots=True)
class Limits:
    """What an ask must keep."""

    vocabulary: int
    context_length: int
    model: str


def read_generate(body: bytes, limits: Limits) -> Ask:
    """Read the body of POST /generate."""
    data = _object(body)
    given = data.get("input_ids")
    prompt = _prompt(data.get("text") if given is None else given, limits)
    params = data.get("sampling_params") or {}
    return Ask(
        prompt=prompt,
        output_tokens=_count(params, "max_new_tokens", GENERATE_TOKENS),
        ignore_eos=bool(params.get("ignore_eos", False)),
        stream=bool(data.get("stream", False)),
        include_usage=True,
        model=limits.model,
        interval=params.get("stream_interval"),
    )


def read_completion(body: bytes, limits: Limits) -> Ask:
    """Read the body of POST /v1/completions."""
    data = _object(body)
    prompt = _prompt(data.get("prompt"), limits)
    return _openai(data, prompt, _count(data, "max_tokens", COMPLETION_TOKENS), limits)


def read_chat(body: bytes, limits: Limits) -> Ask:
    """Read the body of POST /v1/chat/completions."""
    data = _object(body)
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages must be a list with at least one message")
    text = "".join(f"{m.get('role')}: {m.get('content')}\n" for m in messages)
    prompt = _prompt(text, limits)
    left = max(limits.context_length - len(prompt), 1)
    name = "max_completion_tokens" if "max_completion_tokens" in data else "max_tokens"
    return _openai(data, prompt, _count(data, name, left), limits)


def _openai(
    data: Mapping[str, Any], prompt: tuple[int, ...], output_tokens: int, limits: Limits
) -> Ask:
    total = len(prompt) + output_tokens
    if total > limits.context_length:
        raise BadRequestError(
            "Requested token count exceeds the model's maximum context length of "
            f"{limits.context_length} tokens. You requested a total of {total} tokens: "
            f"{len(prompt)} tokens from the input messages and {output_tokens} tokens for the "
            "completion."
        )
    options = data.get("stream_options") or {}
    return Ask(
        prompt=prompt,
        output_tokens=output_tokens,
        ignore_eos=bool(data.get("ignore_eos", False)),
        stream=bool(data.get("stream", False)),
        include_usage=bool(options.get("include_usage", False)),
        model=str(data.get("model") or limits.model),
        interval=None,
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body must be JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadRequestError("the body must be a JSON object")
    return data


def _count(data: Mapping[str, Any], name: str, absent: int) -> int:
    value = data.get(name)
    if value is None:
        return absent
    if type(value) is not int or value < 1:
        raise BadRequestError(f"{name} must be a whole number of at least 1, found {value!r}")
    return value


def _prompt(given: object, limits: Limits) -> tuple[int, ...]:
    """Return token ids: those given, or made-up ones for a text, the same for the same text."""
    match given:
        case str() if given:
            pieces = range(0, len(given), LETTERS_PER_TOKEN)
            return tuple(
                zlib.crc32(given[i : i + LETTERS_PER_TOKEN].encode()) % limits.vocabulary
                for i in pieces
            )
        case list() if given and set(map(type, given)) == {int}:
            if min(given) < 0 or max(given) >= limits.vocabulary:
                raise BadRequestError(
                    f"token ids must be from 0 to {limits.vocabulary - 1}, the model's vocabulary"
                )
            return tuple(given)
        case _:
            raise BadRequestError(
                "one prompt per request must be given, as text or as a list of token ids"
            )
