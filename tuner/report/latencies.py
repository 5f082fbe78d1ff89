"""The latencies of one launch, request by request, as the load client's records tell them."""

import math
from dataclasses import dataclass
from pathlib import Path

from runners.latencies import samples
from runners.records import MEASURED, RequestRecord, read_records

RECORDS = "requests.jsonl"  # on the client's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Of the measured requests that succeeded; TPOT needs two output tokens."""

    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]

    def of(self, family: str) -> tuple[float, ...]:
        """Return the latencies of a *family*: ttft or tpot."""
        return self.ttft_ms if family == "ttft" else self.tpot_ms


def read_latencies(launch_folder: Path, *, speed: float = 1.0) -> Latencies | None:
    """Read a launch's latencies, of an engine that lived *speed* seconds per second.

    None when the launch left no records of a success.
    """
    path = launch_folder / RECORDS
    if not path.exists():
        return None
    measured = [r.scaled(speed) for r in _whole_lines(path) if r.phase == MEASURED]
    ttft = _finite(measured, "ttft")
    return Latencies(ttft_ms=ttft, tpot_ms=_finite(measured, "tpot")) if ttft else None


def _finite(measured: list[RequestRecord], name: str) -> tuple[float, ...]:
    return tuple(value for _, value in samples(measured, name) if math.isfinite(value))


def _whole_lines(path: Path) -> list[RequestRecord]:
    """Return the records up to the first line that a crash cut in half."""
    found: list[RequestRecord] = []
    lines = read_records(path)
    while True:
        try:
            found.append(next(lines))
        except (StopIteration, ValueError, TypeError, KeyError):
            return found
