"""The facts one run of one candidate gave us."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

INFINITE = "inf"  # how an infinite value, a request that timed out, is written in JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A confidence interval of one metric, in the metric's own unit.

    An end is None where the sample is too small to bound that side.
    """

    low: float | None
    high: float | None
    confidence: float
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Facts only: no weights, no judgement. Units are in the names; a missing value is None.

    TTFT: request sent to first content token. TPOT: (last - first token) / (output tokens - 1).
    E2E: request sent to last token. Output tokens are the engine's own count. Throughput: output
    tokens received inside the measured window / its length, load held throughout. Latencies are of
    successful measured requests only; a request that timed out counts as infinitely late.
    """

    # what users feel
    output_tokens_per_s: float
    requests_per_s: float
    ttft_mean_ms: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    ttft_p99_ms: float | None = None
    tpot_mean_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p95_ms: float | None = None
    tpot_p99_ms: float | None = None
    e2e_mean_ms: float | None = None
    e2e_p50_ms: float | None = None
    e2e_p95_ms: float | None = None
    e2e_p99_ms: float | None = None
    chunk_gap_p99_ms: float | None = None  # longest silences inside a stream
    # how much was asked, and how much of it went wrong
    measured_requests: int
    failed_requests: int
    failed_share: float
    warmup_requests: int  # thrown away
    window_s: float
    prompt_tokens: int
    output_tokens: int
    # the client must not be the bottleneck
    client_cpu_share: float | None = None  # of one core
    client_loop_lag_p99_ms: float | None = None
    achieved_concurrency: float | None = None  # mean in flight over the window
    # the engine's own counters over the window
    prefix_cache_hit_rate: float | None = None
    retractions: int | None = None
    running_peak: float | None = None
    queued_peak: float | None = None
    kv_usage_peak: float | None = None  # 0 to 1
    kv_pool_tokens: int | None = None
    # the machine
    startup_s: float | None = None
    gpu_memory_peak_gib: float | None = None
    gpu_memory_free_min_gib: float | None = None
    gpu_power_mean_w: float | None = None
    gpu_temperature_max_c: float | None = None
    gpu_sm_clock_mean_mhz: float | None = None
    output_tokens_per_s_per_gpu: float | None = None
    output_tokens_per_s_per_gib: float | None = None  # of GPU memory in use
    # how sure; keys are names of metrics above
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    # kind of failure -> how many
    failures: Mapping[str, int] = field(default_factory=dict)

    def metric(self, name: str) -> float | None:
        """Return the metric called *name* (see `METRICS`), None when it was not measured."""
        value = getattr(self, name)
        return None if value is None else float(value)

    def metrics(self) -> dict[str, float]:
        """Return every metric that was measured, by name."""
        found = {name: self.metric(name) for name in METRICS}
        return {name: value for name, value in found.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` takes back; JSON has no infinity, so it is "inf"."""
        plain = asdict(self)
        ends = {name: _finite(interval) for name, interval in plain["intervals"].items()}
        return {**_finite(plain), "intervals": ends}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild what `to_json` gave out."""
        ends = data["intervals"].items()
        intervals = {name: Interval(**_numbers(interval)) for name, interval in ends}
        return cls(**{**_numbers(data), "intervals": intervals})


def _finite(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {key: INFINITE if value == math.inf else value for key, value in plain.items()}


def _numbers(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {key: math.inf if value == INFINITE else value for key, value in plain.items()}


METRICS: tuple[str, ...] = tuple(
    f.name for f in fields(Measurement) if f.name not in {"intervals", "failures"}
)
