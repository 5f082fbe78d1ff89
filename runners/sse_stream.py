"""What comes back on a connection: HTTP, cut into server-sent events, read as a completion.

Nothing here opens a socket or reads a clock: bytes and times come in as arguments.
"""

from typing import Any

import httptools
import orjson

OK = 200
DONE = b"[DONE]"
LONGEST_DETAIL = 300  # characters of an error that are kept


class EventSplitter:
    """Cuts a body into the data of its events, wherever the reads happen to end."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, body: bytes) -> list[bytes]:
        """Return the data of every event that *body* completes."""
        text = self._rest + body
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        *events, self._rest = text.split(b"\n\n")
        return [data for data in map(_data, events) if data]


class Answer:
    """What one request has brought so far.

    Only an event with text is a token's arrival: empty ones, and those that carry a role or the
    usage alone, are not. How many tokens came is the engine's word, never a count of events.
    """

    __slots__ = (
        "cached_tokens",
        "chunk_times_s",
        "complete",
        "done",
        "error",
        "finish_reason",
        "keep_alive",
        "output_tokens",
        "prompt_tokens",
        "status",
        "text",
    )

    def __init__(self) -> None:
        self.status: int | None = None
        self.chunk_times_s: list[float] = []
        self.finish_reason: str | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None
        self.error: str | None = None  # the first one the stream told
        self.done = False  # the terminal event came
        self.complete = False  # the HTTP response ended as it should
        self.keep_alive = False
        self.text = b""  # of a response that is no stream

    def take(self, data: bytes, now_s: float) -> None:
        """Read the data of one event that arrived at *now_s*."""
        if data == DONE:
            self.done = True
            return
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            event = None
        if not isinstance(event, dict):
            self._blame(f"an event must be a JSON object, found {shorten(data)}")
        elif event.get("error") is not None or event.get("object") == "error":
            self._blame(_message(event))
        else:
            self._take_completion(event, now_s)

    def failure(self, asked_tokens: int) -> tuple[str, str] | None:
        """Return the kind and the words of what went wrong with an answer that has ended."""
        if self.status != OK:
            return "http", f"{self.status} {shorten(self.text)}"
        if self.error is not None:
            return "in_stream_error", self.error
        if not self.done:
            return "no_done", "the stream ended without its terminal event"
        return self._wrong_content(asked_tokens)

    def _wrong_content(self, asked_tokens: int) -> tuple[str, str] | None:
        if self.finish_reason not in {"length", "stop"}:
            return "in_stream_error", f"finish_reason must be length, found {self.finish_reason}"
        if self.output_tokens != asked_tokens:
            found = "no usage" if self.output_tokens is None else str(self.output_tokens)
            return "length", f"asked for {asked_tokens} output tokens, found {found}"
        if not self.chunk_times_s:
            return "no_content", "the stream had no text at all, so no token has a time"
        return None

    def _take_completion(self, event: dict[str, Any], now_s: float) -> None:
        if choices := event.get("choices"):
            choice = choices[0]
            if choice.get("text"):
                self.chunk_times_s.append(now_s)
            if (reason := choice.get("finish_reason")) is not None:
                self.finish_reason = reason
        if usage := event.get("usage"):
            self.prompt_tokens = usage.get("prompt_tokens")
            self.output_tokens = usage.get("completion_tokens")
            details = usage.get("prompt_tokens_details") or {}
            self.cached_tokens = details.get("cached_tokens")

    def _blame(self, error: str) -> None:
        if self.error is None:
            self.error = error


class AnswerStream:
    """Reads the answers of one connection, one after the other."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._events = EventSplitter()
        self._now_s = 0.0
        self.answer = Answer()

    def begin(self) -> Answer:
        """Expect the answer to the next request."""
        self._events = EventSplitter()
        self.answer = Answer()
        return self.answer

    def feed(self, data: bytes, now_s: float) -> None:
        """Read *data*, which arrived at *now_s*; raise `httptools.HttpParserError` if not HTTP."""
        self._now_s = now_s
        self._parser.feed_data(data)

    # what httptools calls

    def on_headers_complete(self) -> None:
        """Note the status line."""
        self.answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Read a piece of the body."""
        answer = self.answer
        if answer.status != OK:
            answer.text += body[:LONGEST_DETAIL]
            return
        for data in self._events.feed(body):
            answer.take(data, self._now_s)

    def on_message_complete(self) -> None:
        """Note the proper end of the response."""
        self.answer.keep_alive = self._parser.should_keep_alive()
        self.answer.complete = True


def shorten(text: bytes) -> str:
    """Return *text* on one line, cut to what a message can hold."""
    return " ".join(text[:LONGEST_DETAIL].decode("utf-8", "replace").split())


def _data(event: bytes) -> bytes:
    """Return the data lines of *event*; comments and other fields are dropped."""
    if event.startswith(b"data:") and b"\n" not in event:
        return event[5:].strip()
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


def _message(event: dict[str, Any]) -> str:
    error = event.get("error") or event
    message = error.get("message") if isinstance(error, dict) else error
    return shorten(str(message if message is not None else error).encode())
