"""A request under way in virtual time, and the record that comes of it."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from runners.emulated.request import Request
from runners.records import RequestRecord
from runners.workload import PlannedRequest

CUT_SHORT = "length"  # the failure of an answer that ended before all its tokens had come


@dataclass(slots=True)
class Flight:
    """A request that the engine has, and the times of its tokens."""

    planned: PlannedRequest
    request: Request
    sent_s: float
    times_s: list[float] = field(default_factory=list)
    ended: bool = False

    def record(self, end_s: float, failure: str | None, interval: int) -> RequestRecord:
        """Return what the client saw; the stream has an event every *interval* tokens."""
        times_s, done = self.times_s, failure in (None, CUT_SHORT)
        return RequestRecord(
            **_names(self.planned),
            sent_s=self.sent_s,
            first_token_s=times_s[0] if times_s else None,
            last_token_s=times_s[-1] if times_s else None,
            end_s=end_s,
            chunk_times_s=_chunks(times_s, interval),
            status=200,
            finish_reason="length" if done else None,
            prompt_tokens=len(self.planned.prompt) if done else None,
            cached_tokens=self.request.cached_tokens if done else None,
            output_tokens=self.request.emitted if done else None,
            failure=failure,
            detail="" if failure is None else f"ended with {len(times_s)} tokens",
        )


@dataclass(slots=True)
class Patience:
    """How long to wait; those in flight stand in the order in which they were sent."""

    kind: str
    limit_s: float
    first_token_only: bool
    flights: deque[Flight] = field(default_factory=deque)

    def overdue(self, now_s: float) -> Iterator[Flight]:
        """Yield those that waited too long, each once."""
        flights = self.flights
        while flights and now_s - flights[0].sent_s > self.limit_s:
            flight = flights.popleft()
            if not (flight.ended or (self.first_token_only and flight.times_s)):
                yield flight


def refused(planned: PlannedRequest, now_s: float, why: str) -> RequestRecord:
    """Return the record of a request that the engine would answer with HTTP 400."""
    return RequestRecord(
        **_names(planned),
        sent_s=now_s,
        first_token_s=None,
        last_token_s=None,
        end_s=now_s,
        chunk_times_s=(),
        status=400,
        finish_reason=None,
        prompt_tokens=None,
        cached_tokens=None,
        output_tokens=None,
        failure="http",
        detail=why,
    )


class _Names(TypedDict):
    id: int
    phase: str
    slot: int
    round: int
    shape: int
    asked_tokens: int


def _names(planned: PlannedRequest) -> _Names:
    return {
        "id": planned.id,
        "phase": planned.phase,
        "slot": planned.slot,
        "round": planned.round,
        "shape": planned.shape,
        "asked_tokens": planned.output_tokens,
    }


def _chunks(times_s: Sequence[float], interval: int) -> tuple[float, ...]:
    """Return when the stream's events come: the first token at once, then every *interval*."""
    if interval == 1 or len(times_s) <= 1:
        return tuple(times_s)
    chunks = tuple(times_s[::interval])
    return chunks if (len(times_s) - 1) % interval == 0 else (*chunks, times_s[-1])
