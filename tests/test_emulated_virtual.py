"""The emulated engine in virtual time does what the real one does when its knobs are turned."""

from itertools import pairwise

import pytest

from runners.emulated.death import EngineDeathError
from runners.emulated.virtual import emulate
from runners.records import FILLER, MEASURED, UNFINISHED, WARMUP
from runners.workload import PlannedRequest
from tests.emulated_load import fixed_plan, run, seen, settings, tpot_s


def test_the_same_seed_gives_the_same_outcome() -> None:
    """Two launches cannot be told apart, to the last digit; another seed is another launch."""
    requests = fixed_plan(8)

    first, again = (emulate(settings(), requests, seed=7).records for _ in range(2))
    other = emulate(settings(), requests, seed=8).records

    assert first == again
    assert first != other


def test_noise_is_a_few_per_cent() -> None:
    """Runs differ from a noiseless one as real ones do, not more."""
    requests = fixed_plan(8)
    nominal = seen(emulate(settings(), requests, seed=None)).tokens_per_s

    speeds = [seen(emulate(settings(), requests, seed=s)).tokens_per_s for s in range(8)]

    assert all(0.9 < speed / nominal < 1.1 for speed in speeds)
    assert max(speeds) / min(speeds) > 1.005


def test_every_planned_request_is_measured_and_streams_its_tokens() -> None:
    """No request is lost, each has its exact output, and time runs forward in its stream."""
    requests = fixed_plan(6)

    records = run(requests).records

    planned = {r.id for r in requests if r.phase == MEASURED}
    measured = [r for r in records if r.phase == MEASURED]
    assert {r.id for r in measured} == planned
    for r in measured:
        assert r.ok
        assert len(r.chunk_times_s) == r.output_tokens == r.asked_tokens
        assert list(r.chunk_times_s) == sorted(r.chunk_times_s)
        assert r.sent_s < r.chunk_times_s[0]
        assert r.chunk_times_s[-1] == r.last_token_s == r.end_s
    assert {r.phase for r in records} == {WARMUP, MEASURED, FILLER}
    assert sum(r.failure == UNFINISHED for r in records) == 5  # every other slot's last


def test_a_slot_sends_its_next_request_when_the_last_has_ended() -> None:
    """The load is a closed loop: never more in flight than slots."""
    records = run(fixed_plan(4)).records

    for slot in range(4):
        mine = sorted((r for r in records if r.slot == slot), key=lambda r: r.sent_s)
        assert [r.sent_s for r in mine[1:]] == [r.end_s for r in mine[:-1]]


def test_more_running_requests_are_faster_up_to_a_knee_and_each_gets_slower() -> None:
    """At a fixed load the cap trades waiting for the first token against time per token."""
    requests = fixed_plan(64)
    runs = [seen(run(requests, max_running_requests=n)) for n in (2, 4, 8, 16, 32, 64)]

    speeds = [r.tokens_per_s for r in runs]
    assert speeds == sorted(speeds)
    assert speeds[1] > 1.7 * speeds[0]
    assert speeds[5] < 1.3 * speeds[4]  # past the knee
    assert [r.tpot_p95_s for r in runs] == sorted(r.tpot_p95_s for r in runs)
    assert [r.ttft_p50_s for r in runs] == sorted((r.ttft_p50_s for r in runs), reverse=True)


def test_a_load_that_grows_with_the_cap_raises_throughput_and_waiting_together() -> None:
    """With as many users as places, every further user costs the others their first token."""
    runs = [seen(run(fixed_plan(n), max_running_requests=n)) for n in (2, 4, 8, 16, 32, 64)]

    assert [r.tokens_per_s for r in runs] == sorted(r.tokens_per_s for r in runs)
    assert [r.ttft_p95_s for r in runs] == sorted(r.ttft_p95_s for r in runs)


def test_a_cap_above_the_load_changes_nothing() -> None:
    """Below the cap it is not the cap that decides."""
    requests = fixed_plan(8)

    assert (
        run(requests, max_running_requests=8).records
        == run(requests, max_running_requests=64).records
    )


def mixed_plan() -> list[PlannedRequest]:
    """Seven slots with short prompts and long answers, one with prompts of 6,000 tokens."""
    return [
        PlannedRequest(
            id=100 * slot + round_,
            phase=MEASURED if round_ < 4 else FILLER,
            slot=slot,
            round=round_,
            shape=slot // 7,
            prompt=tuple(range(1000 * (round_ + 1) + slot, 1000 * (round_ + 1) + slot + length)),
            output_tokens=output,
        )
        for slot in range(8)
        for length, output in [(6000, 16) if slot == 7 else (100, 160)]
        for round_ in range(5)
    ]


def test_mixed_chunks_keep_streams_alive_while_a_long_prompt_is_computed() -> None:
    """The smaller the chunk, the shorter the silence in other streams; the long prompt pays."""
    requests = mixed_plan()
    silences, long_ttfts = [], []
    for chunk in (64, 512, 8192):
        ran = run(requests, chunked_prefill_size=chunk, enable_mixed_chunk=True)
        short = [r.chunk_times_s for r in ran.records if r.shape == 0]
        silences.append(max(b - a for t in short for a, b in pairwise(t)))
        first = [r for r in ran.records if r.shape == 1 and r.phase == MEASURED]
        long_ttfts.append(sum((r.first_token_s or 0) - r.sent_s for r in first) / len(first))

    assert silences == sorted(silences)
    assert silences[2] > 5 * silences[0]
    assert long_ttfts[0] > 1.3 * long_ttfts[2]


def test_small_chunks_cost_throughput() -> None:
    """Each chunk reads all the weights again."""
    requests = fixed_plan(16, lengths=(1024, 16))
    speeds = [
        seen(run(requests, chunked_prefill_size=c)).tokens_per_s for c in (64, 128, 512, 4096)
    ]

    assert speeds == sorted(speeds)
    assert speeds[3] > 1.5 * speeds[0]


def test_the_longest_prefix_first_finds_more_in_the_cache_than_the_first_come() -> None:
    """With many shared prefixes, a small pool and a queue, lpm stays with a prefix."""
    requests = fixed_plan(96, rounds=1, lengths=(512, 16), prefixes=(12, 448))
    requests = [r for r in requests if r.phase == MEASURED]  # an endless load would starve some
    small = {"max_running_requests": 4, "max_total_tokens": 3200}

    by_arrival = run(requests, schedule_policy="fcfs", **small)
    by_prefix = run(requests, schedule_policy="lpm", **small)

    assert seen(by_prefix).hit_rate > seen(by_arrival).hit_rate + 0.1


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "hrrn"])
def test_cache_aware_policies_are_fcfs_without_the_radix_cache(policy: str) -> None:
    """Such a comparison compares nothing, here as in SGLang."""
    requests = fixed_plan(12, prefixes=(3, 128))
    off = {"disable_radix_cache": True, "max_running_requests": 4}

    ran = run(requests, schedule_policy=policy, **off)

    assert ran.records == run(requests, schedule_policy="fcfs", **off).records
    assert ran.window.cached_tokens == 0


def test_lpm_is_fcfs_while_more_than_128_requests_wait() -> None:
    """A long queue is not sorted."""
    requests = fixed_plan(200, rounds=1, lengths=(64, 4), prefixes=(4, 48))
    waves = [r for r in requests if r.phase == WARMUP]
    first = [
        PlannedRequest(
            id=r.id, phase=MEASURED, slot=r.slot, round=0, shape=0,
            prompt=r.prompt, output_tokens=4,
        )
        for r in waves
    ]  # fmt: skip

    def order(policy: str) -> list[int]:
        records = run(first, schedule_policy=policy, max_running_requests=8).records
        return [r.id for r in records[:48]]

    assert order("lpm") == order("fcfs")


def test_a_longest_output_first_queue_ends_with_the_shortest() -> None:
    """lof sorts by the output asked for."""
    requests = [
        PlannedRequest(
            id=n, phase=MEASURED, slot=n, round=0, shape=0,
            prompt=tuple(range(n * 50, n * 50 + 40)), output_tokens=10 + n,
        )
        for n in range(8)
    ]  # fmt: skip

    records = run(requests, schedule_policy="lof", max_running_requests=1).records

    assert [r.asked_tokens for r in records] == [17, 16, 15, 14, 13, 12, 11, 10]


def test_a_memory_fraction_near_one_dies_under_load_only_when_the_load_is_heavy() -> None:
    """Run-time out-of-memory: the activations of a big step find no room."""
    tight = {"mem_fraction_static": 0.97}

    seen(run(fixed_plan(1), **tight))
    with pytest.raises(EngineDeathError, match=r"torch\.OutOfMemoryError") as died:
        run(fixed_plan(64), **tight)
    assert died.value.exit_code == 137
    seen(run(fixed_plan(64), **tight, chunked_prefill_size=2048))  # smaller steps fit


def test_a_prompt_too_long_for_the_pool_is_refused_and_the_slot_goes_on() -> None:
    """As an HTTP 400 would be: recorded, not dropped."""
    records = run(fixed_plan(2), max_total_tokens=200).records

    measured = [r for r in records if r.phase == MEASURED]
    assert len(measured) == 6
    assert {r.status for r in measured} == {400}
    assert "exceeds the maximum allowed length (194 tokens)" in measured[0].detail


def test_a_starved_request_is_given_up() -> None:
    """A client does not wait for ever; the request counts as infinitely late."""
    ran = emulate(settings(max_running_requests=1), fixed_plan(8), first_token_timeout_s=1.0)

    late = [r for r in ran.records if r.late]
    assert late
    assert {r.failure for r in late} == {"timeout_first_token"}
    assert all(1.0 < r.end_s - r.sent_s < 3.0 for r in late)


def test_a_stream_interval_sends_the_first_token_at_once_and_then_every_eighth() -> None:
    """33 tokens come in five events, and the time per token stays."""
    requests = fixed_plan(1, lengths=(64, 33))
    often, rare = (run(requests, stream_interval=n).records[0] for n in (1, 8))

    assert len(often.chunk_times_s) == 33
    assert len(rare.chunk_times_s) == 5
    assert tpot_s(rare) == tpot_s(often)


def test_a_plan_without_measured_requests_is_an_error() -> None:
    """There would be nothing to wait for."""
    with pytest.raises(ValueError, match="at least one measured request"):
        run([r for r in fixed_plan(2) if r.phase == WARMUP])
