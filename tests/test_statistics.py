"""Percentiles that were really seen, and intervals that cover what they promise to cover."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.statistics import (
    VALUES_NEEDED,
    batch_rates,
    order_statistic,
    percentile,
    percentile_interval,
    throughput_interval,
)

LATENCIES = st.one_of(st.floats(0, 1e6), st.just(math.inf))
QUANTILES = st.sampled_from(sorted(VALUES_NEEDED))


@given(st.lists(LATENCIES, min_size=1, max_size=200), QUANTILES)
def test_a_percentile_was_really_seen(values: list[float], q: float) -> None:
    """A percentile is one of the values, and at least the share q of the others is not above."""
    found = order_statistic(values, q)
    assert found in values
    assert sum(v <= found for v in values) >= q * (len(values) - 1)
    assert sum(v < found for v in values) <= math.ceil(q * (len(values) - 1))


@given(st.lists(LATENCIES, min_size=20, max_size=100), st.randoms(use_true_random=False))
def test_order_does_not_matter_and_percentiles_rise(values: list[float], rng: Random) -> None:
    """Shuffled values have the same percentiles; p50 <= p95."""
    shuffled = rng.sample(values, len(values))
    assert percentile(values, 0.95) == percentile(shuffled, 0.95)
    assert order_statistic(values, 0.5) <= order_statistic(values, 0.95)


@pytest.mark.parametrize(("q", "needed"), [(0.50, 5), (0.95, 20), (0.99, 100)])
def test_too_few_values_have_no_percentile(q: float, needed: int) -> None:
    """A percentile takes the number of values in the table; one less gives none."""
    assert percentile([1.0] * needed, q) == 1.0
    assert percentile([1.0] * (needed - 1), q) is None


def test_an_unknown_quantile_is_an_error() -> None:
    """A quantile that is not in the table is refused by name."""
    with pytest.raises(ValueError, match=r"one of \[0.5, 0.95, 0.99\], found 0.9"):
        percentile([1.0] * 100, 0.9)


def test_rounding_does_not_move_the_rank() -> None:
    """The value at rank q * (n - 1) is taken even where that product is no exact float."""
    assert order_statistic(range(101), 0.07) == 7
    assert order_statistic(range(101), 0.99) == 99
    assert order_statistic(range(21), 0.95) == 19


def test_one_timeout_in_twenty_breaks_the_p95() -> None:
    """An infinite value is an infinite p95 as soon as it reaches the rank."""
    assert percentile([1.0] * 19 + [math.inf], 0.95) == math.inf
    assert percentile([1.0] * 20 + [math.inf], 0.95) == 1.0


def test_a_small_sample_has_no_upper_bound_of_its_p95() -> None:
    """Two-sided 95 %: the p95 has an upper end from 72 values on, not before."""
    assert percentile_interval([float(i) for i in range(71)], 0.95).high is None
    assert percentile_interval([float(i) for i in range(72)], 0.95).high == 71.0
    assert percentile_interval([float(i) for i in range(20)], 0.95).low is not None
    assert percentile_interval([], 0.95).low is None


def test_the_interval_covers_the_true_percentile() -> None:
    """Of 200 samples of 100 exponential draws, at least 92 % bound the true p95 on both sides."""
    rng, truth = Random(1), -math.log(0.05)
    hits = 0
    for _ in range(200):
        interval = percentile_interval([rng.expovariate(1) for _ in range(100)], 0.95)
        assert interval.low is not None
        assert interval.high is not None
        hits += interval.low <= truth <= interval.high
    assert hits >= 184


def test_blocks_widen_the_interval_when_waves_differ() -> None:
    """Values that share a wave are not independent: naming the waves widens the bounds."""
    rng = Random(2)
    waves = [w for w in range(10) for _ in range(50)]
    levels = [rng.lognormvariate(0, 0.3) for _ in range(10)]
    values = [levels[w] * rng.lognormvariate(0, 0.05) for w in waves]
    naive = percentile_interval(values, 0.5)
    aware = percentile_interval(values, 0.5, groupings=[waves])
    assert naive.low is not None
    assert naive.high is not None
    assert aware.low is not None
    assert aware.high is not None
    assert aware.low <= naive.low
    assert aware.high >= naive.high
    assert aware.high - aware.low > 1.5 * (naive.high - naive.low)


def test_the_same_values_give_the_same_interval() -> None:
    """The bootstrap is seeded: two calls agree to the last digit."""
    rng = Random(3)
    values = [rng.random() for _ in range(200)]
    labels = [i // 20 for i in range(200)]
    first = percentile_interval(values, 0.95, groupings=[labels])
    assert first == percentile_interval(values, 0.95, groupings=[labels])


def test_infinite_values_reach_the_upper_end() -> None:
    """Where timeouts are common the upper end is infinite, and the lower end is not."""
    values = [float(i) for i in range(180)] + [math.inf] * 20
    interval = percentile_interval(values, 0.95, groupings=[[i % 10 for i in range(200)]])
    assert interval.high == math.inf
    assert percentile_interval(values, 0.5).high is not None
    assert math.isfinite(percentile_interval(values, 0.5).high or math.inf)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50), st.integers(1, 20))
def test_batches_lose_nothing(times: list[float], batches: int) -> None:
    """What arrived in the window is in exactly one batch; what did not is in none."""
    rates = batch_rates(times, [2.0] * len(times), (2.0, 8.0), batches)
    inside = 2.0 * sum(2.0 <= time <= 8.0 for time in times)
    assert sum(rates) * 6.0 / batches == pytest.approx(inside)


def test_throughput_interval_needs_eight_batches() -> None:
    """Seven batches bound nothing; eight equal ones bound the mean exactly."""
    assert throughput_interval([10.0] * 7).low is None
    assert throughput_interval([10.0] * 8).low == pytest.approx(10.0)
    wide = throughput_interval([8.0, 12.0] * 4)
    assert wide.low == pytest.approx(10 - 2.3646 * 2.1381 / math.sqrt(8), rel=1e-3)


def test_throughput_interval_covers_the_mean() -> None:
    """Of 300 series of 10 normal batches, at least 92 % bound the true mean."""
    rng = Random(4)
    intervals = [throughput_interval([rng.gauss(100, 10) for _ in range(10)]) for _ in range(300)]
    assert sum((i.low or 0) <= 100 <= (i.high or 0) for i in intervals) >= 276
