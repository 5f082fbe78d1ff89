"""The latencies of the measured requests: TTFT, TPOT, E2E, and the gaps between chunks."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from objectives.statistics import percentile
from runners.records import RequestRecord


def _ttft_ms(record: RequestRecord) -> float | None:
    return None if record.first_token_s is None else 1000 * (record.first_token_s - record.sent_s)


def _e2e_ms(record: RequestRecord) -> float | None:
    return None if record.last_token_s is None else 1000 * (record.last_token_s - record.sent_s)


def _tpot_ms(record: RequestRecord) -> float | None:
    """Undefined for one token, and when all of them came at once."""
    first, last, tokens = record.first_token_s, record.last_token_s, record.output_tokens
    if first is None or last is None or tokens is None or tokens == 1 or last == first:
        return None
    return 1000 * (last - first) / (tokens - 1)


LATENCIES: dict[str, Callable[[RequestRecord], float | None]] = {
    "ttft": _ttft_ms,
    "tpot": _tpot_ms,
    "e2e": _e2e_ms,
}


def samples(measured: Iterable[RequestRecord], name: str) -> list[tuple[RequestRecord, float]]:
    """Pair each request that has this latency with it."""
    found: list[tuple[RequestRecord, float]] = []
    for record in measured:
        if record.late and not (name == "tpot" and record.asked_tokens == 1):
            found.append((record, math.inf))
        elif record.ok and (value := LATENCIES[name](record)) is not None:
            found.append((record, value))
    return found


def latencies(measured: Sequence[RequestRecord]) -> dict[str, Any]:
    """Return the mean of those that came, and percentiles that mind those that did not."""
    found: dict[str, float | None] = {}
    for name in LATENCIES:
        values = [value for _, value in samples(measured, name)]
        came = [value for value in values if math.isfinite(value)]
        found[f"{name}_mean_ms"] = math.fsum(came) / len(came) if came else None
        for percent in (50, 95, 99):
            found[f"{name}_p{percent}_ms"] = percentile(values, percent / 100)
    return found


def chunk_gaps_ms(good: Iterable[RequestRecord]) -> Iterator[float]:
    """Yield the silences inside the streams."""
    for record in good:
        for earlier, later in pairwise(record.chunk_times_s):
            yield 1000 * (later - earlier)
