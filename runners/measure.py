"""From the records of a run to its facts, and whether those facts can be believed. All pure."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from objectives import Interval, Measurement
from objectives.statistics import (
    BATCHES_NEEDED,
    batch_rates,
    percentile,
    percentile_interval,
    throughput_interval,
)
from runners.cause import Cause
from runners.errors import CandidateRejectedError, InvalidMeasurementError
from runners.latencies import chunk_gaps_ms, latencies, samples
from runners.records import MEASURED, UNFINISHED, WARMUP, ClientReport, RequestRecord
from runners.spec import LoadSpec
from runners.windows import EngineWindow, GpuWindow

# when the client is to blame for what it saw
BUSY_CPU_SHARE = 0.7  # of one core: from here on times were seen to suffer ...
BUSY_LOOP_LAG_MS = 20.0  # ... if the loop was late as well
FULL_CPU_SHARE = 0.95  # a full core is a bottleneck whatever the loop says
HALTED_LOOP_LAG_MS = 250.0  # the machine did not let the client run
LEAST_CONCURRENCY = 0.9  # of what was asked for
WRONG_LENGTHS = 0.01  # share of requests
FEW_FAILURES = 0.01  # above it failures are the finding, and they lower the concurrency

MOST_BATCHES = 32  # of the throughput's interval; else one a round, as a round is one wave
WITH_INTERVAL = (("ttft", 0.50), ("ttft", 0.95), ("tpot", 0.95), ("e2e", 0.95))

# SGLang's words when its KV pool holds less than one prompt
POOL_TOO_SMALL = re.compile(r"Input length.* exceeds the maximum allowed length")

Window = tuple[float, float]


def measurement_of(
    records: Iterable[RequestRecord],
    report: ClientReport,
    *,
    engine: EngineWindow | None,
    gpu: GpuWindow | None,
    speed: float,
    startup_s: float | None,
) -> Measurement:
    """Return the facts of a run whose engine lived *speed* seconds per second of the client.

    The window reaches from the first measured request sent to the last one's end. Tokens and
    requests per second count what arrived in it for any request, since all of them were the load;
    of a request that the edge cuts, they count the share of its chunks inside. Requests that
    failed give neither tokens nor latencies, but those that timed out are infinitely late.
    """
    load = [record.scaled(speed) if speed != 1.0 else record for record in records]
    measured = [r for r in load if r.phase == MEASURED and r.failure != UNFINISHED]
    _check_answered(load, measured, report)
    window = (min(r.sent_s for r in measured), max(r.end_s for r in measured))
    good = [r for r in measured if r.ok]
    failed = len(measured) - len(good)
    facts = Measurement(
        **_rates(load, window),
        **latencies(measured),
        chunk_gap_p99_ms=percentile(list(chunk_gaps_ms(good)), 0.99),
        measured_requests=len(measured),
        failed_requests=failed,
        failed_share=failed / len(measured),
        failures=dict(Counter(r.failure for r in measured if r.failure is not None)),
        warmup_requests=sum(r.phase == WARMUP for r in load),
        prompt_tokens=sum(r.prompt_tokens or 0 for r in good),
        output_tokens=sum(r.output_tokens or 0 for r in good),
        client_cpu_share=report.cpu_share,
        client_loop_lag_p99_ms=report.loop_lag_p99_ms,
        prefix_cache_hit_rate=_hit_rate(engine, good),
        startup_s=startup_s,
        intervals=_intervals(load, measured, window),
    )
    return _with_gpu(_with_engine(facts, engine), gpu)


def check(measurement: Measurement, load: LoadSpec) -> None:
    """Raise `InvalidMeasurementError` when the figures tell of the client, not of the engine."""
    _check_client(measurement)
    _check_lengths(measurement)
    _check_concurrency(measurement, load)


def _check_client(measurement: Measurement) -> None:
    share, lag = measurement.client_cpu_share or 0.0, measurement.client_loop_lag_p99_ms or 0.0
    busy = share > BUSY_CPU_SHARE and lag > BUSY_LOOP_LAG_MS
    if busy or share > FULL_CPU_SHARE:
        raise InvalidMeasurementError(
            f"the load client must not be the bottleneck, but it used {share:.0%} of a core and "
            f"its loop was {lag:.0f} ms late (p99); give it a free core or lower the concurrency"
        )
    if lag > HALTED_LOOP_LAG_MS:
        raise InvalidMeasurementError(
            f"the load client must wake up in time, but its loop was {lag:.0f} ms late (p99); "
            "other work took its core"
        )


def _check_lengths(measurement: Measurement) -> None:
    wrong = measurement.failures.get("length", 0)
    if wrong > WRONG_LENGTHS * measurement.measured_requests:
        raise InvalidMeasurementError(
            f"every answer must have the length asked for, but {wrong} of "
            f"{measurement.measured_requests} had another; does the engine obey ignore_eos, and "
            "does the model's context hold prompt and output?"
        )


def _check_concurrency(measurement: Measurement, load: LoadSpec) -> None:
    achieved = measurement.achieved_concurrency or 0.0
    least = LEAST_CONCURRENCY * load.concurrency
    if measurement.failed_share <= FEW_FAILURES and achieved < least:
        raise InvalidMeasurementError(
            f"at least {least:.1f} requests must be in flight on average, found {achieved:.1f} "
            f"of the {load.concurrency} asked for; the client could not keep up"
        )


def _check_answered(
    load: Sequence[RequestRecord], measured: Sequence[RequestRecord], report: ClientReport
) -> None:
    if any(r.ok for r in measured) and report.gave_up is None:
        return
    failed = [r for r in load if not r.ok and r.failure != UNFINISHED]
    if not failed:
        raise InvalidMeasurementError("at least one measured request must end, found none")
    [(kind, count)] = Counter(r.failure for r in failed).most_common(1)
    [(detail, _)] = Counter(r.detail for r in failed if r.failure == kind).most_common(1)
    start = "stopped answering" if any(r.ok for r in load) else "answered nothing"
    small = POOL_TOO_SMALL.search(detail or "") is not None
    raise CandidateRejectedError(
        f"the engine {start}: of {len(load)} requests {len(failed)} failed, {count} of them with "
        f"{kind}: {detail}",
        cause=Cause.KV_MEMORY if small else Cause.UNUSABLE_ANSWERS,
        directions={"mem_fraction_static": "raise"} if small else None,
    )


def _rates(load: Sequence[RequestRecord], window: Window) -> dict[str, Any]:
    start, end = window
    inside = [arrival for arrival in _arrivals(load) if start <= arrival.time_s <= end]
    in_flight = (max(min(r.end_s, end) - max(r.sent_s, start), 0.0) for r in load)
    return {
        "output_tokens_per_s": math.fsum(a.tokens for a in inside) / (end - start),
        "requests_per_s": math.fsum(a.tokens / a.asked_tokens for a in inside) / (end - start),
        "achieved_concurrency": math.fsum(in_flight) / (end - start),
        "window_s": end - start,
    }


class _Arrival(NamedTuple):
    """A chunk that came, how many tokens it held, and of how many that were asked for."""

    time_s: float
    tokens: float
    asked_tokens: int


def _arrivals(load: Iterable[RequestRecord]) -> Iterator[_Arrival]:
    """Yield the chunks of all requests that did not fail.

    The engine's count of a request is spread over its chunks. A request that we cut ourselves at
    the end has no count: its chunks held as many tokens as those of the others.
    """
    whole = [r for r in load if r.ok and r.output_tokens and r.chunk_times_s]
    chunks = sum(len(r.chunk_times_s) for r in whole)
    usual = sum(r.output_tokens or 0 for r in whole) / chunks if chunks else 0.0
    for record in load:
        if record.ok and record.output_tokens and record.chunk_times_s:
            tokens = record.output_tokens / len(record.chunk_times_s)
        elif record.failure == UNFINISHED:
            tokens = usual
        else:
            continue
        for time_s in record.chunk_times_s:
            yield _Arrival(time_s, tokens, record.asked_tokens)


def _intervals(
    load: Sequence[RequestRecord], measured: Sequence[RequestRecord], window: Window
) -> dict[str, Interval]:
    rounds = len({r.round for r in measured})
    batches = min(max(rounds, BATCHES_NEEDED), MOST_BATCHES)
    arrivals = list(_arrivals(load))
    times, tokens = [a.time_s for a in arrivals], [a.tokens for a in arrivals]
    rates = batch_rates(times, tokens, window, batches)
    found = {"output_tokens_per_s": throughput_interval(rates)}
    for name, q in WITH_INTERVAL:
        pairs = samples(measured, name)
        values = [value for _, value in pairs]
        if percentile(values, q) is not None:
            waves, slots = [r.round for r, _ in pairs], [r.slot for r, _ in pairs]
            interval = percentile_interval(values, q, groupings=(waves, slots))
            found[f"{name}_p{100 * q:.0f}_ms"] = interval
    return found


def _hit_rate(engine: EngineWindow | None, good: Iterable[RequestRecord]) -> float | None:
    """Return the share of prompt tokens found in the cache: by the engine's counters, if any."""
    if engine is not None and engine.cached_tokens is not None and engine.prompt_tokens:
        return engine.cached_tokens / engine.prompt_tokens
    told = [r for r in good if r.cached_tokens is not None and r.prompt_tokens]
    prompts = sum(r.prompt_tokens or 0 for r in told)
    return sum(r.cached_tokens or 0 for r in told) / prompts if prompts else None


def _with_engine(facts: Measurement, engine: EngineWindow | None) -> Measurement:
    if engine is None:
        return facts
    return replace(
        facts,
        retractions=engine.retractions,
        running_peak=engine.running_peak,
        queued_peak=engine.queued_peak,
        kv_usage_peak=engine.kv_usage_peak,
        kv_pool_tokens=engine.kv_pool_tokens,
    )


def _with_gpu(facts: Measurement, gpu: GpuWindow | None) -> Measurement:
    if gpu is None:
        return facts
    rate = facts.output_tokens_per_s
    return replace(
        facts,
        gpu_memory_peak_gib=gpu.memory_peak_gib,
        gpu_memory_free_min_gib=gpu.memory_free_min_gib,
        gpu_power_mean_w=gpu.power_mean_w,
        gpu_temperature_max_c=gpu.temperature_max_c,
        gpu_sm_clock_mean_mhz=gpu.sm_clock_mean_mhz,
        output_tokens_per_s_per_gpu=rate / gpu.gpus if gpu.gpus else None,
        output_tokens_per_s_per_gib=rate / gpu.memory_peak_gib if gpu.memory_peak_gib else None,
    )
