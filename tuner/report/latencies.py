"""The latencies of one launch, request by request, as its records tell them."""

from dataclasses import dataclass
from pathlib import Path

from runners.records import MEASURED, RequestRecord, read_records


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Of the measured requests that succeeded; TPOT needs two output tokens."""

    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]

    def of(self, family: str) -> tuple[float, ...]:
        """Return the latencies of a *family*: ttft or tpot."""
        return self.ttft_ms if family == "ttft" else self.tpot_ms


def read_latencies(launch_folder: Path) -> Latencies | None:
    """Read a launch's latencies; None when it left no records of a success."""
    path = launch_folder / "records.jsonl"
    if not path.exists():
        return None
    records = [r for r in _whole_lines(path) if r.phase == MEASURED and r.ok]
    ttft = tuple(v for r in records if (v := ttft_ms(r)) is not None)
    tpot = tuple(v for r in records if (v := tpot_ms(r)) is not None)
    return Latencies(ttft_ms=ttft, tpot_ms=tpot) if ttft else None


def ttft_ms(record: RequestRecord) -> float | None:
    """Return the time from sending to the first content token."""
    if record.first_token_s is None:
        return None
    return (record.first_token_s - record.sent_s) * 1000


def tpot_ms(record: RequestRecord) -> float | None:
    """Return the mean time for each output token after the first."""
    if record.first_token_s is None or record.last_token_s is None:
        return None
    after_first = (record.output_tokens or 0) - 1
    if after_first < 1:
        return None
    return (record.last_token_s - record.first_token_s) / after_first * 1000


def _whole_lines(path: Path) -> list[RequestRecord]:
    """Return the records up to the first line that a crash cut in half."""
    found: list[RequestRecord] = []
    lines = read_records(path)
    while True:
        try:
            found.append(next(lines))
        except (StopIteration, ValueError, TypeError, KeyError):
            return found
