"""The HTTP/1.1 side of the emulated engine: requests in, bytes out, at little cost per chunk.

Written on asyncio's protocols: a streamed chunk then costs 15 to 24 microseconds of CPU, against
22 to 29 through starlette and uvicorn and 26 to 32 through aiohttp (measured in one session on a
small shared machine), and an engine that runs faster than life has many chunks to send.
"""

import asyncio
import socket
from collections.abc import Callable
from urllib.parse import parse_qsl

import httptools
import orjson

JSON = b"application/json"
PLAIN = b"text/plain; charset=utf-8"
END_OF_STREAM = b"0\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
REASONS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    503: b"Service Unavailable",
}


def event(data: bytes) -> bytes:
    """Return *data* as one server-sent event in one HTTP chunk."""
    return b"%x\r\ndata: %s\n\n\r\n" % (len(data) + 8, data)


class Exchange:
    """One request and the answer to it."""

    def __init__(self, method: str, target: bytes, body: bytes, connection: "Connection") -> None:
        url = httptools.parse_url(target)
        self.method = method
        self.path = url.path.decode()
        self.query = dict(parse_qsl((url.query or b"").decode()))
        self.body = body
        self.on_gone: Callable[[], None] | None = None  # called if the client leaves too early
        self._connection = connection

    def answer(self, status: int, body: bytes, kind: bytes = JSON) -> None:
        """Send a whole answer."""
        head = b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (
            status,
            REASONS[status],
            kind,
            len(body),
        )
        self.write(head + body)
        self.close()

    def answer_json(self, status: int, body: object) -> None:
        """Send a whole answer."""
        self.answer(status, orjson.dumps(body))

    def write(self, data: bytes) -> None:
        """Send *data* as it is; a client that has gone misses it."""
        self._connection.send(data)

    def close(self) -> None:
        """Say that the answer is complete; the connection may be used again."""
        self.on_gone = None
        self._connection.done()


Handler = Callable[[Exchange], None]


class Connection(asyncio.Protocol):
    """One client; it sends its next request when the answer to the last one is complete."""

    def __init__(self, handler: Handler, open_connections: "set[Connection]") -> None:
        self._handler = handler
        self._open = open_connections
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._body: list[bytes] = []
        self._keep_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; small packets must not wait for each other."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - TCP always gives one
        self._transport = transport
        self._open.add(self)
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever answers that nobody listens any more."""
        self._transport = None
        self._open.discard(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None and exchange.on_gone is not None:
            exchange.on_gone()

    def data_received(self, data: bytes) -> None:
        """Read on; what is not HTTP ends the connection."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.drop()

    def on_message_begin(self) -> None:
        """Begin a request (called by the parser)."""
        self._target, self._body = b"", []

    def on_url(self, url: bytes) -> None:
        """Read a piece of the target (called by the parser)."""
        self._target += url

    def on_headers_complete(self) -> None:
        """Note whether more will follow: the parser forgets it (called by the parser)."""
        self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """Read a piece of the body (called by the parser)."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Hand the request on (called by the parser)."""
        if self._exchange is not None:  # pipelining: no client of ours does it
            self.drop()
            return
        method = self._parser.get_method().decode()
        self._exchange = Exchange(method, self._target, b"".join(self._body), self)
        self._handler(self._exchange)

    def send(self, data: bytes) -> None:
        """Send *data* if somebody listens."""
        if self._transport is not None:
            self._transport.write(data)

    def done(self) -> None:
        """Be ready for the next request."""
        self._exchange = None
        if self._transport is not None and not self._keep_alive:
            self._transport.close()

    def drop(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()
