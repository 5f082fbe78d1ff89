"""The answers to generating requests, byte for byte in SGLang's three formats.

Every emulated token is the same short text, so that a stream's event is built once per request
and sent again for each token.
"""

import time
from typing import Any, Protocol

import orjson

from runners.emulated.asks import Ask
from runners.emulated.exchange import END_OF_STREAM, STREAM_HEAD, Exchange, event
from runners.emulated.request import OUTPUT_TOKEN, Request

WORD = " ok"
FINISH = {"type": "length"}
DONE = event(b"[DONE]")


class Wording(Protocol):
    """One API's way of saying things."""

    def piece(self, tokens: int, total: int) -> bytes:
        """Return the stream's bytes for *tokens* more, *total* so far."""

    def last(self, tokens: int, request: Request) -> bytes:
        """Return the bytes that end the stream, *tokens* more among them."""

    def whole(self, request: Request) -> dict[str, Any]:
        """Return the answer to a client that does not stream."""


class Answer:
    """The tokens of one request on their way to the client."""

    def __init__(self, exchange: Exchange, ask: Ask, request: Request, interval: int) -> None:
        self.request = request
        self._exchange = exchange
        self._stream = ask.stream
        self._interval = max(ask.interval or interval, 1)
        self._tokens = 0
        self._unsent = 0
        self._wording: Wording | None = None

    def begin(self, wording: Wording) -> None:
        """Open the stream."""
        self._wording = wording
        if self._stream:
            self._exchange.write(STREAM_HEAD)

    def token(self) -> None:
        """Take one token; send what is due: the first at once, then every interval."""
        self._tokens += 1
        self._unsent += 1
        if self._tokens == self.request.output_tokens:
            return  # `finish` sends the last one
        due = self._interval == 1 or self._tokens % self._interval == 1
        if due and self._stream and self._wording is not None:
            self._exchange.write(self._wording.piece(self._unsent, self._tokens))
            self._unsent = 0

    def finish(self) -> None:
        """Complete the answer."""
        if self._wording is None:
            return
        if self._stream:
            self._exchange.write(self._wording.last(self._unsent, self.request) + END_OF_STREAM)
            self._exchange.close()
        else:
            self._exchange.answer_json(200, self._wording.whole(self.request))


def usage(request: Request, *, report_cache: bool) -> dict[str, Any]:
    """Return the token counts of a finished request."""
    prompt, output = len(request.prompt), request.emitted
    details = {"cached_tokens": request.cached_tokens or 0} if report_cache else None
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
        "prompt_tokens_details": details,
        "reasoning_tokens": 0,
    }


class Completion:
    """POST /v1/completions."""

    def __init__(self, ask: Ask, request: Request, *, report_cache: bool) -> None:
        self._include_usage = ask.include_usage
        self._report_cache = report_cache
        self._head = {
            "id": f"{request.id:032x}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": ask.model,
        }
        self._one = self._event(1, None)

    def piece(self, tokens: int, total: int) -> bytes:
        """Return the stream's bytes for *tokens* more."""
        return self._one if tokens == 1 else self._event(tokens, None)

    def last(self, tokens: int, request: Request) -> bytes:
        """Return the last text, the usage if it was asked for, and the end mark."""
        end = self._event(tokens, "length")
        if self._include_usage:
            count = usage(request, report_cache=self._report_cache)
            end += event(orjson.dumps({**self._head, "choices": [], "usage": count}))
        return end + DONE

    def whole(self, request: Request) -> dict[str, Any]:
        """Return the answer to a client that does not stream."""
        choice = {
            "index": 0,
            "text": WORD * request.emitted,
            "logprobs": None,
            "finish_reason": "length",
            "matched_stop": None,
        }
        count = usage(request, report_cache=self._report_cache)
        return {**self._head, "choices": [choice], "usage": count}

    def _event(self, tokens: int, finish: str | None) -> bytes:
        choice = {
            "index": 0,
            "text": WORD * tokens,
            "logprobs": None,
            "finish_reason": finish,
            "matched_stop": None,
        }
        return event(orjson.dumps({**self._head, "choices": [choice], "usage": None}))


class Chat:
    """POST /v1/chat/completions: a role first, and an empty delta last."""

    def __init__(self, ask: Ask, request: Request, *, report_cache: bool) -> None:
        self._include_usage = ask.include_usage
        self._report_cache = report_cache
        self._base = {
            "id": f"{request.id:032x}",
            "created": int(time.time()),
            "model": ask.model,
        }
        self._head = {**self._base, "object": "chat.completion.chunk"}
        self._one = self._event({"content": WORD})
        self._role = self._event({"role": "assistant", "content": ""})

    def piece(self, tokens: int, total: int) -> bytes:
        """Return the stream's bytes for *tokens* more, *total* so far."""
        text = self._one if tokens == 1 else self._event({"content": WORD * tokens})
        return self._role + text if tokens == total else text

    def last(self, tokens: int, request: Request) -> bytes:
        """Return the last text, the finish reason, the usage if asked for, and the end mark."""
        end = self.piece(tokens, request.emitted) + self._event({}, "length")
        if self._include_usage:
            count = usage(request, report_cache=self._report_cache)
            end += event(orjson.dumps({**self._head, "choices": [], "usage": count}))
        return end + DONE

    def whole(self, request: Request) -> dict[str, Any]:
        """Return the answer to a client that does not stream."""
        message = {"role": "assistant", "content": WORD * request.emitted}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        count = usage(request, report_cache=self._report_cache)
        return {**self._base, "object": "chat.completion", "choices": [choice], "usage": count}

    def _event(self, delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event(orjson.dumps({**self._head, "choices": [choice], "usage": None}))


class Generate:
    """POST /generate: every event repeats all the text so far."""

    def __init__(self, ask: Ask, request: Request, *, report_cache: bool) -> None:
        self._request = request
        self._id = f"{request.id:032x}"

    def piece(self, tokens: int, total: int) -> bytes:
        """Return the stream's bytes for *total* tokens."""
        return event(orjson.dumps(self._body(total, None)))

    def last(self, tokens: int, request: Request) -> bytes:
        """Return all the text, the finish reason and the end mark."""
        return event(orjson.dumps(self._body(request.emitted, FINISH))) + DONE

    def whole(self, request: Request) -> dict[str, Any]:
        """Return the answer to a client that does not stream."""
        return self._body(request.emitted, FINISH)

    def _body(self, tokens: int, finish: dict[str, str] | None) -> dict[str, Any]:
        meta = {
            "id": self._id,
            "finish_reason": finish,
            "prompt_tokens": len(self._request.prompt),
            "completion_tokens": tokens,
            "cached_tokens": self._request.cached_tokens or 0,
            "num_retractions": self._request.retractions,
        }
        return {
            "text": WORD * tokens,
            "output_ids": [OUTPUT_TOKEN] * tokens,
            "meta_info": meta,
        }
