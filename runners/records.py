"""What the load client writes down about each request, and about itself."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import orjson

WARMUP, MEASURED, FILLER = "warmup", "measured", "filler"
UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as the client saw it. Times are seconds on one clock that starts at 0.

    *failure* is None for a success: status 200, no error in the stream, its terminal marker, a
    finish reason and exactly the output length asked for. UNFINISHED is a request the client cut
    itself when the load ended; it blames nobody. *chunk_times_s* are the arrivals of the chunks
    that carried content; *late* marks a time-out, which counts as infinitely late.
    """

    id: int
    phase: str  # WARMUP | MEASURED | FILLER
    slot: int
    round: int
    shape: int
    sent_s: float
    first_token_s: float | None
    last_token_s: float | None
    end_s: float
    chunk_times_s: tuple[float, ...]
    status: int | None
    finish_reason: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    asked_tokens: int
    failure: str | None = None  # "http", "in_stream_error", "cut", "length", "timeout_total" ...
    detail: str = ""

    @property
    def ok(self) -> bool:
        """True when the request succeeded in full."""
        return self.failure is None

    @property
    def late(self) -> bool:
        """True when the request was given up after a time-out."""
        return self.failure is not None and self.failure.startswith("timeout")

    def scaled(self, speed: float) -> Self:
        """Return this record on a clock that runs *speed* times faster."""
        return replace(
            self,
            sent_s=self.sent_s * speed,
            first_token_s=None if self.first_token_s is None else self.first_token_s * speed,
            last_token_s=None if self.last_token_s is None else self.last_token_s * speed,
            end_s=self.end_s * speed,
            chunk_times_s=tuple(t * speed for t in self.chunk_times_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReport:
    """How the load client itself fared while it measured (wall clock, never scaled).

    *gave_up* says why the client ended early, before every measured request was sent.
    """

    wall_s: float
    cpu_s: float
    loop_lag_p99_ms: float
    connections: int
    gave_up: str | None = None

    @property
    def cpu_share(self) -> float:
        """CPU seconds per second of wall clock, of one core."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write one JSON object a line."""
    with path.open("wb") as out:
        out.writelines(orjson.dumps(r, option=orjson.OPT_APPEND_NEWLINE) for r in records)


def read_records(path: Path) -> Iterator[RequestRecord]:
    """Read what `write_records` wrote."""
    with path.open("rb") as lines:
        for line in lines:
            data: dict[str, Any] = orjson.loads(line)
            data["chunk_times_s"] = tuple(data["chunk_times_s"])
            yield RequestRecord(**data)
