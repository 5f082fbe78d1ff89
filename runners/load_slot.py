"""One slot of the load: one connection, at most one request in flight."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httptools

from runners.load_jobs import Job, Target
from runners.records import UNFINISHED, RequestRecord
from runners.sse_stream import Answer, AnswerStream

CONNECT_TIMEOUT_S = 5.0
LOAD_ENDED = (UNFINISHED, "the load ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for what, in seconds."""

    first_token_s: float
    stall_s: float
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request sent and what became of it."""

    sent_s: float
    end_s: float
    answer: Answer
    failure: tuple[str, str] | None  # that the connection told; the answer may hold another


class Connection(asyncio.Protocol):
    """One TCP connection; reads answers as they arrive and stamps each read before anything."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._stream = AnswerStream()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Exchange] | None = None
        self._sent_s = 0.0

    @property
    def usable(self) -> bool:
        """True when another request can be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; small packets must not wait for each other."""
        self._transport = cast("asyncio.Transport", transport)  # TCP gives no other
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Stamp and read what arrived."""
        now_s = self._clock()
        try:
            self._stream.feed(data, now_s)
        except httptools.HttpParserError as error:
            self.give_up("http", f"the answer must be HTTP/1.1: {error}")
            return
        if self._stream.answer.complete:
            self._end(now_s, None)
            if not self._stream.answer.keep_alive:
                self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request in flight, if any; one whose terminal event came has not been cut."""
        self._transport = None
        words = f"the connection broke off: {exc}" if exc else "the engine closed the connection"
        self._end(self._clock(), None if self._stream.answer.done else ("cut", words))

    def send(self, payload: bytes) -> "asyncio.Future[Exchange]":
        """Send one request; the future holds the exchange once it has ended, however."""
        assert self._transport is not None  # noqa: S101 - only a usable connection is asked
        self._waiter = asyncio.get_running_loop().create_future()
        self._stream.begin()
        self._sent_s = self._clock()
        self._transport.write(payload)
        return self._waiter

    def give_up(self, kind: str, words: str) -> None:
        """Close the connection; the request in flight ends as *kind*."""
        self._end(self._clock(), (kind, words))
        if self._transport is not None:
            self._transport.abort()

    def give_up_if_overdue(self, now_s: float, patience: Patience) -> None:
        """Give up on a request that outlasted *patience*."""
        if self._waiter is None:
            return
        times = self._stream.answer.chunk_times_s
        if now_s - self._sent_s > patience.total_s:
            self.give_up("timeout_total", f"not done after {patience.total_s:g} s")
        elif not times and now_s - self._sent_s > patience.first_token_s:
            self.give_up("timeout_first_token", f"no token after {patience.first_token_s:g} s")
        elif times and now_s - times[-1] > patience.stall_s:
            self.give_up("timeout_stall", f"no token for {patience.stall_s:g} s")

    def close(self) -> None:
        """Close the connection after what is in its buffers."""
        if self._transport is not None:
            self._transport.close()

    def _end(self, end_s: float, failure: tuple[str, str] | None) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        answer = self._stream.answer
        waiter.set_result(
            Exchange(sent_s=self._sent_s, end_s=end_s, answer=answer, failure=failure)
        )


class Slot:
    """Sends one request after the other, on a connection that is kept open."""

    def __init__(self, target: Target, patience: Patience, clock: Callable[[], float]) -> None:
        self._target = target
        self._patience = patience
        self._clock = clock
        self._connection = Connection(clock)
        self._ended = False
        self.connections = 0  # opened so far

    async def connect(self) -> str | None:
        """Open the connection unless it is open; return what went wrong."""
        if self._connection.usable:
            return None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, self._connection = await loop.create_connection(
                    lambda: Connection(self._clock), self._target.host, self._target.port
                )
        except TimeoutError:
            return f"no connection after {CONNECT_TIMEOUT_S:g} s"
        except OSError as error:
            return str(error)
        self.connections += 1
        return None

    async def ask(self, job: Job) -> RequestRecord:
        """Send *job* and return its record, whatever became of it."""
        start_s = self._clock()
        if (problem := await self.connect()) is not None:
            return self._unsent(job, start_s, ("connect", problem))
        if self._ended:
            self._connection.close()
            return self._unsent(job, start_s, LOAD_ENDED)
        return _record(job, await self._connection.send(job.payload))

    def give_up_if_overdue(self, now_s: float) -> None:
        """Give up on a request that takes too long."""
        self._connection.give_up_if_overdue(now_s, self._patience)

    def cut(self) -> None:
        """End the request in flight, through no fault of its own, and send no more."""
        self._ended = True
        self._connection.give_up(*LOAD_ENDED)

    def _unsent(self, job: Job, start_s: float, failure: tuple[str, str]) -> RequestRecord:
        now_s = self._clock()
        return _record(
            job, Exchange(sent_s=start_s, end_s=now_s, answer=Answer(), failure=failure)
        )


def _record(job: Job, exchange: Exchange) -> RequestRecord:
    answer = exchange.answer
    kind, words = exchange.failure or answer.failure(job.asked_tokens) or (None, "")
    times = answer.chunk_times_s
    return RequestRecord(
        id=job.id,
        phase=job.phase,
        slot=job.slot,
        round=job.round,
        shape=job.shape,
        sent_s=exchange.sent_s,
        first_token_s=times[0] if times else None,
        last_token_s=times[-1] if times else None,
        end_s=exchange.end_s,
        chunk_times_s=tuple(times),
        status=answer.status,
        finish_reason=answer.finish_reason,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        output_tokens=answer.output_tokens,
        asked_tokens=job.asked_tokens,
        failure=kind,
        detail=words,
    )
