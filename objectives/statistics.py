"""How sure a measurement is: exact percentiles, and intervals that do not assume independence.

A percentile is a value that was really seen, never one between two; it may be infinite, which
stands for a request that never came back in time.
"""

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from objectives.measurement import Interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# a quantile -> how many values it takes before we speak of it
VALUES_NEEDED: dict[float, int] = {0.50: 5, 0.95: 20, 0.99: 100}
BATCHES_NEEDED = 8  # for a t-interval of batch means
BLOCKS_NEEDED = 5  # for a bootstrap of blocks
REPLICATES = 500
BOOTSTRAP_SEED = 20


def order_statistic(values: Sequence[float], q: float) -> float:
    """Return the smallest of *values* that is not below the rank of quantile *q*."""
    return sorted(values)[_rank(len(values), q)]


def percentile(values: Sequence[float], q: float) -> float | None:
    """Return quantile *q* of *values*, None when there are too few to speak of it."""
    if len(values) < _needed(q):
        return None
    return order_statistic(values, q)


def percentile_interval(
    values: Sequence[float],
    q: float,
    confidence: float = 0.95,
    groupings: Sequence[Sequence[Hashable]] = (),
) -> Interval:
    """Bound quantile *q* of what *values* were drawn from.

    The ends are order statistics, chosen by the binomial law. That law takes the values for
    independent, and requests that shared a wave or a slot are not: each of *groupings* names the
    block of each value, its blocks are drawn anew (bootstrap), and the widest bounds count.
    """
    ordered = sorted(values)
    low, high = _binomial_ends(ordered, q, confidence)
    method = "binomial order statistics"
    for labels in groupings:
        if len(set(labels)) < BLOCKS_NEEDED:
            continue
        bottom, top = _block_ends(values, labels, q, confidence)
        low = None if low is None else min(low, bottom)
        high = None if high is None else max(high, top)
        method = "wider of binomial order statistics and block bootstrap"
    return Interval(low=low, high=high, confidence=confidence, method=method)


def batch_rates(
    times_s: Sequence[float],
    amounts: Sequence[float],
    window: tuple[float, float],
    batches: int,
) -> list[float]:
    """Cut *window* into equal *batches* and return the amount per second of each."""
    start, end = window
    length = (end - start) / batches
    sums = [0.0] * batches
    for time, amount in zip(times_s, amounts, strict=True):
        if start <= time <= end:
            sums[min(int((time - start) / length), batches - 1)] += amount
    return [total / length for total in sums]


def throughput_interval(rates: Sequence[float], confidence: float = 0.95) -> Interval:
    """Bound the mean of *rates*, one a batch of the window, by Student's t.

    Fewer than 8 batches bound nothing.
    """
    method = f"{len(rates)} batch means, Student's t"
    if len(rates) < BATCHES_NEEDED:
        return Interval(low=None, high=None, confidence=confidence, method=method)
    from scipy.special import stdtrit

    n, mean = len(rates), math.fsum(rates) / len(rates)
    error = math.sqrt(math.fsum((rate - mean) ** 2 for rate in rates) / (n - 1) / n)
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * error
    return Interval(
        low=max(mean - half, 0.0), high=mean + half, confidence=confidence, method=method
    )


def _needed(q: float) -> int:
    if q not in VALUES_NEEDED:
        raise ValueError(f"a quantile must be one of {sorted(VALUES_NEEDED)}, found {q!r}")
    return VALUES_NEEDED[q]


def _rank(count: int, q: float) -> int:
    """Rank (from 0) of quantile *q*; the small term undoes the rounding of q * (count - 1)."""
    return math.ceil(q * (count - 1) - 1e-9)


def _binomial_ends(
    ordered: Sequence[float], q: float, confidence: float
) -> tuple[float | None, float | None]:
    """Equal-tailed: each end is missed with a chance of at most (1 - confidence) / 2."""
    if not ordered:
        return None, None
    import numpy as np
    from scipy.special import bdtr

    n, tail = len(ordered), (1 - confidence) / 2
    at_most = bdtr(np.arange(n), n, q)  # chance that at most k values lie below the quantile
    below = int(np.searchsorted(at_most, tail, side="right")) - 1
    above = int(np.searchsorted(at_most, 1 - tail, side="left"))
    return (ordered[below] if below >= 0 else None, ordered[above] if above < n else None)


def _block_ends(
    values: Sequence[float], labels: Sequence[Hashable], q: float, confidence: float
) -> tuple[float, float]:
    import numpy as np

    ordered = np.sort(np.asarray(values, dtype=float))
    block_of = _block_numbers(values, labels)
    blocks = int(block_of.max()) + 1
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    draws = rng.multinomial(blocks, [1 / blocks] * blocks, size=REPLICATES)
    seen = np.cumsum(draws[:, block_of], axis=1)  # values drawn so far, in rising order
    ranks = np.ceil(q * (seen[:, -1] - 1) - 1e-9)
    found = np.sort(ordered[np.argmax(seen > ranks[:, None], axis=1)])
    tail = (1 - confidence) / 2
    bottom, top = _rank(REPLICATES, tail), _rank(REPLICATES, 1 - tail)
    return float(found[bottom]), float(found[top])


def _block_numbers(values: Sequence[float], labels: Sequence[Hashable]) -> "NDArray[np.intp]":
    """Return the number of each value's block, in rising order of the values."""
    import numpy as np

    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    order = np.argsort(np.asarray(values, dtype=float), kind="stable")
    return np.asarray([numbers[label] for label in labels], dtype=np.intp)[order]
