"""Names, units and numbers as people read them."""

import math
from collections.abc import Sequence

from objectives import Interval, Margin

ABSENT = "–"  # noqa: RUF001  # a dash that fills an empty cell
UNITS = {
    "_tokens_per_s": "tokens/s",
    "_per_s_per_gpu": "tokens/s per GPU",
    "_per_s_per_gib": "tokens/s per GiB",
    "requests_per_s": "requests/s",
    "_ms": "ms",
    "_mhz": "MHz",
    "_gib": "GiB",
    "_w": "W",
    "_c": "°C",
    "_s": "s",
}
NAMES = {
    "output_tokens_per_s": "Throughput",
    "requests_per_s": "Requests",
    "failed_share": "Failed share",
}
ABBREVIATIONS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E", "gpu": "GPU", "cpu": "CPU"}
DEFINITIONS = (
    ("TTFT", "time to first token: from sending a request to its first content token"),
    (
        "TPOT",
        "time per output token: (last token - first token) / (output tokens - 1), for each "
        "request; output tokens are the engine's own count",
    ),
    ("E2E", "from sending a request to its last token"),
    (
        "Throughput",
        "output tokens received inside the measured window / its length, with the load held "
        "throughout; warm-up requests are thrown away",
    ),
    (
        "p50, p95, p99",
        "order statistics of the successful measured requests; a request that timed out counts "
        "as infinitely late, and a percentile without enough requests is missing, never 0",
    ),
    (
        "Interval",
        "the range that holds the true value with the stated confidence, as far as one launch "
        "can tell; how one launch differs from the next is not in it",
    ),
    ("Margin", "(value - limit) / limit: below 0 % keeps the limit"),
    ("Tie", "the two intervals overlap, so that the difference may be chance"),
)


def label(metric: str) -> str:
    """Return a metric's name for people: `ttft_p95_ms` is TTFT p95."""
    if metric in NAMES:
        return NAMES[metric]
    stem = metric.removesuffix(_suffix(metric)) or metric
    first, *rest = (ABBREVIATIONS.get(word, word) for word in stem.split("_"))
    return " ".join((first[:1].upper() + first[1:], *rest))


def unit(metric: str) -> str:
    """Return the unit that a metric's name ends with, empty for a bare number."""
    return UNITS.get(_suffix(metric), "")


def with_unit(metric: str) -> str:
    """Return name and unit, as an axis or a table shows them."""
    return f"{label(metric)} ({unit(metric)})" if unit(metric) else label(metric)


def number(value: float | None) -> str:
    """Write a number with as many digits as it deserves."""
    if value is None:
        return ABSENT
    if math.isinf(value):
        return "infinite"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004


def with_interval(value: float | None, interval: Interval | None) -> str:
    """Write a number and, where it is known, the interval it lies in."""
    if value is None or interval is None:
        return number(value)
    low = number(interval.low) if interval.low is not None else "?"
    high = number(interval.high) if interval.high is not None else "?"
    return f"{number(value)} [{low}; {high}]"


def broken_limit(margin: Margin) -> str:
    """Say how a limit was not kept."""
    limit, name = margin.limit, label(margin.limit.metric)
    allowed = f"{'at most' if limit.at_most is not None else 'at least'} {limit.bound:g}"
    if margin.value is None:
        return f"{name} has no finite value, allowed is {allowed} {unit(limit.metric)}".strip()
    return f"{name} is {margin.value:.5g}, allowed is {allowed} {unit(limit.metric)}".strip()


def percent(share: float | None) -> str:
    """Write a relative change with its sign."""
    if share is None:
        return ABSENT
    digits = 2 if 0 < abs(share) < 0.001 else 1  # noqa: PLR2004  # what would round to 0.0
    return f"{share:+.{digits}%}".replace("%", " %")


def seconds(value: float) -> str:
    """Write a duration in the unit people would use."""
    if value < 120:  # noqa: PLR2004  # two minutes
        return f"{value:.0f} s"
    if value < 7200:  # noqa: PLR2004  # two hours
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"


def listed(numbers: Sequence[int], most: int = 12) -> str:
    """Write launch numbers, the first few of them when they are many."""
    shown = ", ".join(str(n) for n in numbers[:most])
    return f"{shown} and {len(numbers) - most} more" if len(numbers) > most else shown


def _suffix(metric: str) -> str:
    return next((s for s in UNITS if metric.endswith(s)), "")
