"""Records become facts by the definitions we print, and suspicious facts are refused."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from objectives import Limit, Measurement, ThroughputUnderLimits
from runners.cause import Cause
from runners.errors import CandidateRejectedError, InvalidMeasurementError
from runners.measure import check, measurement_of
from runners.records import FILLER, MEASURED, UNFINISHED, WARMUP, ClientReport, RequestRecord
from runners.spec import LoadSpec
from runners.windows import EngineWindow, GpuWindow

CALM = ClientReport(wall_s=10.0, cpu_s=1.0, loop_lag_p99_ms=1.0, connections=2)


def request(sent_s: float, *chunks_s: float, **other: Any) -> RequestRecord:
    """Build a request that succeeded, with one token a chunk unless told otherwise."""
    known: dict[str, Any] = {
        "id": 0,
        "phase": MEASURED,
        "slot": 0,
        "round": 0,
        "shape": 0,
        "sent_s": sent_s,
        "first_token_s": chunks_s[0] if chunks_s else None,
        "last_token_s": chunks_s[-1] if chunks_s else None,
        "end_s": chunks_s[-1] if chunks_s else sent_s,
        "chunk_times_s": chunks_s,
        "status": 200,
        "finish_reason": "length",
        "prompt_tokens": 100,
        "cached_tokens": None,
        "output_tokens": len(chunks_s),
        "asked_tokens": len(chunks_s),
    }
    return RequestRecord(**{**known, **other})


def facts(
    *records: RequestRecord, report: ClientReport = CALM, speed: float = 1.0, **windows: Any
) -> Measurement:
    return measurement_of(
        records,
        report,
        engine=windows.get("engine"),
        gpu=windows.get("gpu"),
        speed=speed,
        startup_s=windows.get("startup_s"),
    )


def steady(count: int, **other: Any) -> list[RequestRecord]:
    """Build two slots that take turns without a pause: five tokens in one second each."""
    return [
        request(t, t + 0.2, t + 0.4, t + 0.6, t + 0.8, t + 1.0, round=i // 2, slot=i % 2, **other)
        for i in range(count)
        for t in [float(i // 2)]
    ]


def test_latencies_are_what_the_definitions_say() -> None:
    """TTFT to the first token, TPOT over the other tokens, E2E to the last token."""
    found = facts(*steady(40), startup_s=12.0)
    assert found.ttft_p50_ms == pytest.approx(200)
    assert found.ttft_mean_ms == pytest.approx(200)
    assert found.tpot_p50_ms == pytest.approx(200)
    assert found.e2e_p95_ms == pytest.approx(1000)
    assert found.ttft_p99_ms is None  # 40 requests are not enough
    assert found.chunk_gap_p99_ms == pytest.approx(200)
    assert found.startup_s == 12.0


def test_rates_count_the_window() -> None:
    """Two slots, five tokens a second each: 10 tokens/s, 2 requests/s, 2 in flight."""
    found = facts(*steady(40))
    assert found.window_s == pytest.approx(20)
    assert found.output_tokens_per_s == pytest.approx(10)
    assert found.requests_per_s == pytest.approx(2)
    assert found.achieved_concurrency == pytest.approx(2)
    assert (found.output_tokens, found.prompt_tokens) == (200, 4000)


def test_the_edge_of_the_window_cuts_requests_not_tokens() -> None:
    """A warm-up request half inside counts half its tokens; so does a filler that we cut."""
    measured = request(10.0, 11.0, 12.0)
    warmup = request(8.0, 9.0, 9.5, 10.5, 11.0, phase=WARMUP, output_tokens=8, asked_tokens=8)
    filler = request(
        11.0,
        11.5,
        phase=FILLER,
        failure=UNFINISHED,
        output_tokens=None,
        asked_tokens=4,
        end_s=12.0,
    )
    found = facts(measured, warmup, filler)
    usual = (2 + 8) / (2 + 4)  # tokens a chunk
    assert found.window_s == pytest.approx(2)
    assert found.output_tokens_per_s == pytest.approx((2 + 4 + usual) / 2)
    assert found.achieved_concurrency == pytest.approx((2 + 1 + 1) / 2)
    assert (found.measured_requests, found.warmup_requests, found.failed_requests) == (1, 1, 0)


def test_a_failed_request_gives_neither_tokens_nor_latencies() -> None:
    """What a broken stream delivered does not count; the failure does, by its kind."""
    broken = request(0.0, 0.1, 0.2, failure="cut", output_tokens=None)
    found = facts(*steady(40), broken)
    assert found.output_tokens_per_s == pytest.approx(10)
    assert found.failures == {"cut": 1}
    assert found.failed_requests == 1
    assert found.failed_share == pytest.approx(1 / 41)
    assert found.ttft_p50_ms == pytest.approx(200)


def test_a_timeout_is_infinitely_late_and_breaks_the_limit() -> None:
    """Two of 40 timed out: p50 holds, p95 is infinite, survives JSON and breaks its limit."""
    late = [request(0.0, failure="timeout_first_token", asked_tokens=5, end_s=20.0)] * 2
    found = facts(*steady(38), *late)
    assert found.ttft_p50_ms == pytest.approx(200)
    assert found.ttft_p95_ms == found.tpot_p95_ms == found.e2e_p95_ms == math.inf
    assert found.ttft_mean_ms == pytest.approx(200)  # of those that came
    text = json.dumps(found.to_json(), allow_nan=False)
    assert Measurement.from_json(json.loads(text)) == found
    limit = Limit(metric="ttft_p95_ms", at_most=1e9)
    judge = ThroughputUnderLimits(maximize="output_tokens_per_s", limits=(limit,))
    assert not judge.judge(found).feasible


def test_an_emulated_engine_is_measured_on_its_own_clock() -> None:
    """Ten times faster than real time: latencies are ten times longer, rates a tenth."""
    real = facts(*steady(40))
    fast = facts(*(r.scaled(0.1) for r in steady(40)), speed=10.0)
    assert fast.ttft_p50_ms == pytest.approx(real.ttft_p50_ms)
    assert fast.output_tokens_per_s == pytest.approx(real.output_tokens_per_s)
    assert fast.client_cpu_share == real.client_cpu_share


def test_tpot_is_missing_where_it_is_undefined() -> None:
    """One token, or all tokens in one chunk, have no time per output token."""
    single = [request(float(i), i + 0.5) for i in range(20)]
    lump = [request(float(i), i + 0.5, output_tokens=8, asked_tokens=8) for i in range(20)]
    assert facts(*single).tpot_p50_ms is None
    assert facts(*lump).tpot_mean_ms is None
    assert facts(*lump).output_tokens_per_s == pytest.approx(160 / 19.5)


def test_the_hit_rate_is_the_engines_else_the_requests() -> None:
    """Counters first; without them the cached tokens of the requests; else it is missing."""
    told = steady(40, cached_tokens=25)
    engine = EngineWindow(prompt_tokens=1000, cached_tokens=700, retractions=3, queued_peak=9.0)
    found = facts(*told, engine=engine)
    assert found.prefix_cache_hit_rate == pytest.approx(0.7)
    assert (found.retractions, found.queued_peak) == (3, 9.0)
    assert facts(*told).prefix_cache_hit_rate == pytest.approx(0.25)
    assert facts(*steady(40)).prefix_cache_hit_rate is None


def test_throughput_is_also_given_per_gpu_and_per_gib() -> None:
    """Two GPUs with 5 GiB in use share 10 tokens/s."""
    gpu = GpuWindow(gpus=2, memory_peak_gib=5.0, memory_free_min_gib=1.0, power_mean_w=300.0)
    found = facts(*steady(40), gpu=gpu)
    assert found.output_tokens_per_s_per_gpu == pytest.approx(5)
    assert found.output_tokens_per_s_per_gib == pytest.approx(2)
    assert found.gpu_power_mean_w == 300.0


def test_intervals_hold_their_metric() -> None:
    """Where a metric has an interval, the metric lies in it; too few requests have none."""
    found = facts(*steady(200))
    assert set(found.intervals) == {
        "output_tokens_per_s",
        "ttft_p50_ms",
        "ttft_p95_ms",
        "tpot_p95_ms",
        "e2e_p95_ms",
    }
    for name, interval in found.intervals.items():
        value = found.metric(name) or 0.0
        assert (interval.low or 0.0) - 1e-6 <= value <= (interval.high or math.inf) + 1e-6
    assert "ttft_p95_ms" not in facts(*steady(18)).intervals


def test_a_pool_smaller_than_one_prompt_wants_more_memory() -> None:
    """SGLang's refusal of a prompt for want of KV cache tells the search which way to go."""
    words = "400 Input length (3500 tokens) exceeds the maximum allowed length (2994 tokens)"
    broken = [request(float(i), failure="http", status=400, detail=words) for i in range(3)]
    with pytest.raises(CandidateRejectedError, match="answered nothing") as caught:
        facts(*broken)
    assert caught.value.cause is Cause.KV_MEMORY
    assert caught.value.directions == {"mem_fraction_static": "raise"}


def test_nothing_but_failures_is_no_measurement() -> None:
    """The candidate is rejected with the most common kind of failure and its words."""
    broken = [
        request(float(i), failure="http", status=500, detail="500 out of memory") for i in range(3)
    ]
    with pytest.raises(
        CandidateRejectedError, match=r"answered nothing.* 3 of them with http: 500 out of"
    ):
        facts(*broken, request(9.0, failure="cut", detail="gone"))
    with pytest.raises(CandidateRejectedError, match="stopped answering"):
        facts(request(0.0, 0.1, phase=WARMUP), *broken)


def test_a_load_that_was_given_up_is_no_measurement() -> None:
    """Some answers came before the engine failed for good: that is a rejection, not a number."""
    broken = [request(float(i), failure="cut", detail="gone") for i in range(30)]
    report = replace(CALM, gave_up="30 requests failed in a row")
    with pytest.raises(CandidateRejectedError, match="stopped answering"):
        facts(*steady(40), *broken, report=report)


def test_no_measured_request_is_invalid() -> None:
    """A run that measured nothing, and in which nothing failed, cannot be trusted."""
    with pytest.raises(InvalidMeasurementError, match="at least one measured request"):
        facts(request(0.0, 0.1, phase=WARMUP))


LOAD = LoadSpec(concurrency=2, rounds=20)


def test_a_good_run_passes_every_gate() -> None:
    """Full concurrency, right lengths and an idle client are trusted."""
    check(facts(*steady(40)), LOAD)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"client_cpu_share": 0.8, "client_loop_lag_p99_ms": 30.0}, "used 80% of a core"),
        ({"client_cpu_share": 0.99}, "used 99% of a core"),
        ({"client_loop_lag_p99_ms": 400.0}, "400 ms late"),
        ({"achieved_concurrency": 1.7}, "at least 1.8 requests must be in flight"),
        ({"failures": {"length": 2}}, "2 of 40 had another"),
    ],
)
def test_each_gate_refuses_what_it_is_for(changes: dict[str, Any], words: str) -> None:
    """One bad figure is enough, and the message names it."""
    with pytest.raises(InvalidMeasurementError, match=words):
        check(replace(facts(*steady(40)), **changes), LOAD)


@pytest.mark.parametrize(
    "changes",
    [
        {"client_cpu_share": 0.8},  # busy, but in time
        {"client_loop_lag_p99_ms": 100.0},  # late, but idle: a noisy neighbour
        {"achieved_concurrency": 1.0, "failed_share": 0.2, "failures": {"cut": 8}},
    ],
)
def test_gates_let_through_what_is_not_the_clients_fault(changes: dict[str, Any]) -> None:
    """Failures of the engine lower the concurrency; they are a finding, not a fault of ours."""
    check(replace(facts(*steady(40)), **changes), LOAD)
