"""A plan is the same for every candidate, and holds the traffic that was asked for."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.records import FILLER, MEASURED, WARMUP
from runners.spec import LoadSpec, Shape, WorkloadSpec
from runners.workload import (
    PlannedRequest,
    plan,
    prefix_sharing,
    read_plan,
    sha256,
    vocabulary_of,
    write_plan,
)


def mixed(seed: int = 1, concurrency: int = 6, rounds: int = 5) -> WorkloadSpec:
    return WorkloadSpec(
        kind="mixed",
        seed=seed,
        shapes=(
            Shape(share=7, input_tokens=40, output_tokens=8, prefix_groups=2, prefix_tokens=30),
            Shape(share=3, input_tokens=10, output_tokens=32),
        ),
        load=LoadSpec(concurrency=concurrency, rounds=rounds, warmup_rounds=2),
    )


def of_phase(requests: list[PlannedRequest], phase: str) -> list[PlannedRequest]:
    return [r for r in requests if r.phase == phase]


def test_the_same_spec_gives_the_same_file(tmp_path: Path) -> None:
    """Two plans of one spec are the same file; another seed is another file."""
    first = write_plan(tmp_path / "a", plan(mixed(), 1000))
    assert first == write_plan(tmp_path / "b", plan(mixed(), 1000)) == sha256(tmp_path / "a")
    assert first != write_plan(tmp_path / "c", plan(mixed(seed=2), 1000))


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    """What is read back is what was planned."""
    requests = plan(mixed(), 1000)
    write_plan(tmp_path / "plan", requests)
    assert read_plan(tmp_path / "plan") == requests


def test_every_slot_has_all_its_rounds_in_order() -> None:
    """Slot by slot the rounds count on from warm-up over measured to filler rounds."""
    requests = plan(mixed(), 1000)
    for slot in range(6):
        mine = [r for r in requests if r.slot == slot]
        assert [r.round for r in mine] == list(range(len(mine)))
        phases = [r.phase for r in mine]
        assert phases == [WARMUP] * 2 + [MEASURED] * 5 + [FILLER] * (len(mine) - 7)
        assert len(mine) >= 9
    assert [r.id for r in requests] == list(range(len(requests)))


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=4),
    st.integers(1, 12),
    st.integers(1, 8),
)
def test_shares_are_kept_as_whole_numbers_can(
    shares: list[float], concurrency: int, rounds: int
) -> None:
    """The measured count of each shape is within one of its share, in all and in each round."""
    shapes = tuple(Shape(share=s, input_tokens=2, output_tokens=1) for s in shares)
    load = LoadSpec(concurrency=concurrency, rounds=rounds)
    spec = WorkloadSpec(kind="mixed", shapes=shapes, load=load)
    measured = of_phase(plan(spec, 100), MEASURED)
    counts = Counter(r.shape for r in measured)
    for shape, share in enumerate(shares):
        exact = share / sum(shares) * len(measured)
        assert abs(counts[shape] - exact) < 1 + 1e-9
        for number in range(1, rounds + 1):
            here = sum(r.shape == shape for r in measured if r.round == number)
            assert abs(here - exact / rounds) < 2


def test_no_slot_is_heavier_than_the_others() -> None:
    """With 70 : 30 in ten rounds every slot sends two to four of the rare shape."""
    measured = of_phase(plan(mixed(concurrency=16, rounds=10), 1000), MEASURED)
    rare = Counter(r.slot for r in measured if r.shape == 1)
    assert set(rare.values()) <= {2, 3, 4}
    assert len(rare) == 16


def test_prompts_have_the_asked_lengths_and_ids() -> None:
    """Every prompt has its shape's length, from ids that are neither bytes nor special."""
    for request in plan(mixed(), 1000):
        assert len(request.prompt) == (40, 10)[request.shape]
        assert request.output_tokens == (8, 32)[request.shape]
        assert min(request.prompt) >= 250
        assert max(request.prompt) < 950
    assert min(min(r.prompt) for r in plan(mixed(), 100_000)) >= 256


def test_no_prompt_is_sent_twice() -> None:
    """Warm-up, measured and filler prompts all differ."""
    requests = plan(mixed(), 1000)
    assert len({r.prompt for r in requests}) == len(requests)


def test_warm_up_shares_no_prefix_with_what_is_measured() -> None:
    """Measured requests and fillers share two prefixes; warm-up requests have two others."""
    requests = [r for r in plan(mixed(concurrency=16), 1000) if r.shape == 0]
    prefixes = {p: {r.prompt[:30] for r in of_phase(requests, p)} for p in (WARMUP, MEASURED)}
    assert len(prefixes[MEASURED]) == len(prefixes[WARMUP]) == 2
    assert prefixes[MEASURED].isdisjoint(prefixes[WARMUP])
    assert {r.prompt[:30] for r in of_phase(requests, FILLER)} <= prefixes[MEASURED]


def test_prefix_sharing_is_what_a_perfect_cache_would_hit() -> None:
    """Of 21 measured requests of 40 tokens, 2 prefixes of 30 are new: the rest is a hit."""
    requests = [r for r in plan(mixed(), 100_000) if r.shape == 0]
    measured = of_phase(requests, MEASURED)
    hits = 30 * (len(measured) - 2)
    assert prefix_sharing(requests) == pytest.approx(hits / (40 * len(measured)), abs=0.01)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=12))
def test_prefix_sharing_agrees_with_counting_by_hand(prompts: list[list[int]]) -> None:
    """The share equals the longest common prefix with any earlier prompt, found one by one."""
    requests = [
        PlannedRequest(
            id=i, phase=MEASURED, slot=0, round=i, shape=0, prompt=tuple(p), output_tokens=1
        )
        for i, p in enumerate(prompts)
    ]
    shared = 0
    for i, prompt in enumerate(prompts):
        lengths = range(len(prompt) + 1)
        shared += max((n for o in prompts[:i] for n in lengths if o[:n] == prompt[:n]), default=0)
    assert prefix_sharing(requests) == shared / sum(map(len, prompts))


def test_a_vocabulary_without_choice_is_refused() -> None:
    """A vocabulary that leaves one id gives an error that says so."""
    with pytest.raises(ValueError, match="at least 2 ids to draw prompts from, found 1 of 2"):
        plan(mixed(), 2)


def test_the_vocabulary_is_read_from_the_model(tmp_path: Path) -> None:
    """A model directory states its vocabulary, also inside text_config; a name states none."""
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 512}))
    assert vocabulary_of(tmp_path) == 512
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 300}}))
    assert vocabulary_of(tmp_path) == 300
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert vocabulary_of(tmp_path) is None
    assert vocabulary_of(Path("meta-llama/Llama-3.1-8B")) is None
