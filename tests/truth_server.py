"""A server that streams completions exactly as told, and remembers what it was asked.

It is the truth the load client is compared with. It knows nothing of the client's code.
"""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How to answer one request."""

    first_s: float = 0.005  # until the first token
    gap_s: float = 0.001  # between chunks
    tokens_per_chunk: int = 1
    empty_first: bool = False  # an event without text before the first token
    fault: str | None = None  # "refuse", "error", "cut", "short", "stall", "silent", "no_done"
    piece: int | None = None  # bytes per write; default: an event
    joined: bool = False  # every event in one write
    cached_tokens: int | None = None
    line_end: str = "\n"


@dataclass
class TruthServer:
    """Answers POST requests by *script*, which is given the request's number and body."""

    script: Callable[[int, dict[str, Any]], Script] = lambda _number, _body: Script()
    bodies: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0
    in_flight: int = 0
    peak: int = 0
    tokens_sent: int = 0
    port: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,))
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1024)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._loop.call_soon(started.set)
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length:")[1].split("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        number = len(self.bodies)
        self.bodies.append(body)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            return await self._stream(self.script(number, body), body, writer)
        finally:
            self.in_flight -= 1

    async def _stream(
        self, script: Script, body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        if script.fault == "refuse":
            text = b'{"object":"error","message":"too long for me"}'
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(text))
            writer.write(text)
            await writer.drain()
            return True
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        events = _Events(script, writer)
        if script.empty_first:
            await events.send({"choices": [{"index": 0, "text": "", "finish_reason": None}]})
        await asyncio.sleep(3600 if script.fault == "silent" else script.first_s)
        return await self._tokens(script, body, events)

    async def _tokens(self, script: Script, body: dict[str, Any], events: "_Events") -> bool:
        asked = body["max_tokens"]
        broken = script.fault in {"error", "cut", "short", "stall"}
        wanted = asked // 2 if broken else asked
        for start in range(0, wanted, script.tokens_per_chunk):
            if start and script.gap_s:
                await asyncio.sleep(script.gap_s)
            count = min(script.tokens_per_chunk, wanted - start)
            self.tokens_sent += count
            last = start + count == wanted and script.fault in {None, "short", "no_done"}
            reason = "length" if last else None
            text = "a" * count
            await events.send({"choices": [{"index": 0, "text": text, "finish_reason": reason}]})
        if script.fault == "cut":
            return False
        if script.fault == "stall":
            await asyncio.sleep(3600)
        if script.fault == "error":
            await events.send({"error": {"message": "ran out of luck", "code": 500}})
        else:
            await events.send({"choices": [], "usage": _usage(script, body, wanted)})
        if script.fault != "no_done":
            await events.send("[DONE]")
        await events.end()
        return True


class _Events:
    """Writes events, each an HTTP chunk, in pieces of the size the script asks for."""

    def __init__(self, script: Script, writer: asyncio.StreamWriter) -> None:
        self._script = script
        self._writer = writer
        self._held = b""

    async def send(self, event: dict[str, Any] | str) -> None:
        text = event if isinstance(event, str) else json.dumps(event)
        data = f"data: {text}{2 * self._script.line_end}".encode()
        await self._write(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        held, self._held = self._held + b"0\r\n\r\n", b""
        self._writer.write(held)
        await self._writer.drain()

    async def _write(self, data: bytes) -> None:
        if self._script.joined:
            self._held += data
            return
        size = self._script.piece or len(data)
        for start in range(0, len(data), size):
            self._writer.write(data[start : start + size])
            await self._writer.drain()
            if size < len(data):
                await asyncio.sleep(0)


def _usage(script: Script, body: dict[str, Any], tokens: int) -> dict[str, Any]:
    usage: dict[str, Any] = {"prompt_tokens": len(body["prompt"]), "completion_tokens": tokens}
    if script.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": script.cached_tokens}
    return usage
