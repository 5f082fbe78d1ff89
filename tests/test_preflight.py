"""What is found before anything starts: flags, queues and memory, on made-up engines and GPUs."""

import json
from pathlib import Path
from typing import Any

import pytest

from runners.memory_need import GIB, ModelSize, model_size
from search_spaces import Candidate, Choice, FloatRange, IntRange, Value, sglang
from search_spaces.corners import corners
from tests import fake_sglang
from tuner.preflight import Findings, findings, problems
from tuner.study_file import StudyFile

POLICIES: dict[str, Any] = {"schedule_policy": ["fcfs", "lpm"]}
# Shapes of a published 8B model: 32 layers, 8 heads of 128 in the cache.
CONFIG = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return an engine table with a made-up SGLang and model; answers are kept in a folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    python = fake_sglang.install(tmp_path)
    command = [str(python), "-m", "sglang.launch_server"]
    return {"kind": "sglang", "model": str(model), "command": command}


def study(
    engine: dict[str, Any],
    knobs: dict[str, Any] | None = None,
    *,
    flags: tuple[str, ...] = (),
    concurrency: int = 16,
    address: str = "local",
) -> StudyFile:
    data = {
        "study": {"name": "s"},
        "engine": {**engine, "flags": list(flags)},
        "workload": {
            "kind": "fixed",
            "input_tokens": 900,
            "output_tokens": 100,
            "load": {"concurrency": concurrency, "rounds": 2},
        },
        "search": {"knobs": knobs or POLICIES},
        "cluster": {"address": address},
    }
    return StudyFile.model_validate_json(json.dumps(data))


def gpu(total_gib: float, used_gib: float = 0.0, index: int = 0) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "Made-up",
        "memory_total_mib": round(total_gib * 1024),
        "memory_used_mib": round(used_gib * 1024),
    }


def found(file: StudyFile, *gpus: dict[str, Any]) -> Findings:
    return findings(file, lambda: gpus)


def test_corners_are_a_handful() -> None:
    """Each end of each knob alone, and two extremes: the sum of the knobs, not their product."""
    space = sglang.space(
        [
            Choice(name="schedule_policy", values=("fcfs", "lpm", "lof")),
            IntRange(name="token_budget", low=100, high=999, step=100),
            FloatRange(name="mem_fraction_static", low=0.5, high=0.9),
        ]
    )
    tried = corners(space)

    assert len(tried) == 3 + 2 + 2 + 2
    assert Candidate.of({"token_budget": 900}) in tried
    assert tried[-1]["schedule_policy"] == "lof"
    assert all(space.problems(corner) == [] for corner in tried)


def test_a_study_in_order_has_no_findings(engine: dict[str, Any]) -> None:
    """Nothing is made up, and it is said who checked the flags."""
    seen = found(study(engine))

    assert seen.problems == ()
    assert seen.notes == ()
    assert seen.flags_checked.startswith("checked against SGLang 9.9 (")


def test_every_wrong_flag_is_a_problem(engine: dict[str, Any]) -> None:
    """Fixed flags and knobs alike, each named with its place."""
    knobs = {**POLICIES, "--max-runing-requests": [1, 2]}
    seen = found(study(engine, knobs, flags=("--disable-radix",)))

    assert [p.partition(": ")[0] for p in seen.problems] == [
        "engine.flags",
        "--max-runing-requests=1",
    ]
    assert "--disable-radix-cache" in seen.problems[0]
    assert "did you mean --max-running-requests?" in seen.problems[1]


def test_a_refused_end_of_a_range_is_a_note(engine: dict[str, Any]) -> None:
    """The search learns it; the study goes on. Fixed, the same value stops it."""
    knob = "--prefill-decode-interval"
    seen = found(study(engine, {**POLICIES, knob: {"low": -2, "high": 4}}))
    fixed = found(study(engine, flags=(knob, "-2")))

    assert seen.problems == ()
    (note,) = seen.notes
    assert note.startswith("--prefill-decode-interval=-2: SGLang 9.9 refuses it: interval must")
    assert fixed.problems == (
        "engine.flags: SGLang 9.9 refuses it: interval must be non-negative",
    )


def test_an_engine_that_cannot_be_asked_stops_nothing(
    engine: dict[str, Any], tmp_path: Path
) -> None:
    """It is said that, and why, flags were not checked."""
    broken = fake_sglang.install(tmp_path / "broken", "raise ImportError('no libcuda')")
    seen = found(study({**engine, "command": [str(broken), *engine["command"][1:]]}))

    assert seen.problems == ()
    assert "not checked" in seen.flags_checked
    assert "no libcuda" in seen.flags_checked


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ("--page-size", "16", "--chunked-prefill-size", "100"),
            "--page-size must divide --chunked-prefill-size",
        ),
        (("--mem-fraction-static", "nan"), "must be a finite number, found nan"),
        (("--page-size", "1", "--page-size", "2"), "--page-size must be given once"),
        (("--schedule-conservativeness", "-1"), "must be at least 0, found -1"),
        (("--tp-size", "two"), "--tp-size must be a whole number, found 'two'"),
        (("--mem-fraction-static=1.5",), "--mem-fraction-static must be at most 0.99"),
    ],
)
def test_fixed_flags_are_known_to_be_wrong_for_any_command(
    flags: tuple[str, ...], says: str
) -> None:
    """What SGLang asserts is said even of an engine that cannot be asked."""
    (problem,) = problems(study({"kind": "sglang", "model": "m", "command": ["sh"]}, flags=flags))

    assert problem.startswith("engine.flags: ")
    assert says in problem


def test_fixed_flags_in_order_are_no_problem() -> None:
    """Chunking may be off, pages may divide the chunk."""
    flags = ("--chunked-prefill-size", "-1", "--page-size", "16", "--tp-size", "2")

    assert list(problems(study({"kind": "sglang", "model": "m"}, flags=flags))) == []


def test_a_policy_that_goes_with_no_launch_is_named(engine: dict[str, Any]) -> None:
    """Without the prefix cache, lpm would be fcfs: it is left out, and that is said."""
    (note,) = found(study(engine, flags=("--disable-radix-cache",))).notes

    assert note.startswith("schedule_policy=lpm will never be launched: ")


def test_priority_scheduling_leaves_two_policies() -> None:
    """SGLang asserts fcfs or lof: the rule holds for a fixed flag and for a knob."""
    policy = Choice(name="schedule_policy", values=("fcfs", "lpm", "lof"))
    switch = Choice(name="--enable-priority-scheduling", values=(True, False))
    fixed = sglang.space([policy], ["--enable-priority-scheduling"])
    free = sglang.space([policy, switch])
    both: dict[str, Value] = {"schedule_policy": "lpm", "--enable-priority-scheduling": True}

    assert fixed.problems(Candidate.of({"schedule_policy": "lof"})) == []
    assert fixed.problems(Candidate.of({"schedule_policy": "lpm"})) != []
    assert free.problems(Candidate.of(both)) != []
    assert free.problems(Candidate.of({**both, "--enable-priority-scheduling": False})) == []


def test_a_queue_beyond_what_policies_look_at_is_a_note(engine: dict[str, Any]) -> None:
    """At 8 running, 192 of 200 wait, and lpm is fcfs; at 128 waiting it is still itself."""
    knobs = {**POLICIES, "max_running_requests": {"low": 8, "high": 64}}
    (note,) = found(study(engine, knobs, concurrency=200)).notes

    assert "192 of 200" in note
    assert found(study(engine, knobs, concurrency=136)).notes == ()


def test_weights_beyond_every_gpu_are_a_problem(engine: dict[str, Any]) -> None:
    """15 GiB of weights go on no 12 GiB GPU; on two of them they do."""
    (problem,) = found(study(engine), gpu(12)).problems

    assert "15.0 GiB" in problem
    assert "raise --tp-size" in problem
    assert found(study(engine, flags=("--tp-size", "2")), gpu(12)).problems == ()
    assert found(study(engine, address="auto"), gpu(12)).problems == ()


def test_a_gpu_in_use_and_small_pools_are_notes(engine: dict[str, Any]) -> None:
    """What fits is said for both ends of the range, and that somebody uses the GPU."""
    knobs = {"mem_fraction_static": {"low": 0.5, "high": 0.9}}
    in_use, low, high = found(study(engine, knobs), gpu(24, used_gib=12), gpu(80, index=1)).notes

    assert "GPU 0 (Made-up) has 12.0 GiB of 24.0 GiB free now" in in_use
    assert "fewer than the longest request's 1000" in low
    assert "at mem_fraction_static = 0.9 about" in high
    assert "of the longest requests at once" in high


def test_chunking_off_on_a_small_memory_is_a_note(engine: dict[str, Any]) -> None:
    """SGLang's own fraction would be below nothing: known for a GPU, and for a CPU's machine."""
    off = ("--chunked-prefill-size", "-1")
    more = ("--device", "cpu", "--max-prefill-tokens")
    engine = {**engine, "model": "a/hub-name", "command": ["sh"]}
    (note,) = found(study(engine, flags=off), gpu(24)).notes

    assert "SGLang sets 24.6 GiB aside for prefills unless --mem-fraction-static is given" in note
    assert "GPU 0 (Made-up) has 24.0 GiB" in note
    assert found(study(engine, flags=(*off, "--mem-fraction-static", "0.5")), gpu(24)).notes == ()
    assert found(study(engine, flags=off), gpu(80)).notes == ()
    assert found(study(engine, flags=off)).notes == ()
    assert found(study(engine, flags=(*off, *more, "2048"))).notes == ()
    (note,) = found(study(engine, flags=(*off, *more, "99999999"))).notes
    assert "this machine has" in note


def test_only_the_gpus_a_launch_sees_count(engine: dict[str, Any]) -> None:
    """A small GPU that CUDA_VISIBLE_DEVICES hides is no obstacle."""
    shown = study({**engine, "env": {"CUDA_VISIBLE_DEVICES": "1"}})

    assert found(shown, gpu(12), gpu(80, index=1)).problems == ()


def test_the_size_of_a_model_is_read_from_its_files(tmp_path: Path) -> None:
    """The index tells best, then the files, then the shapes; what is unknown stays unknown."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    estimated = model_size(tmp_path)
    assert estimated is not None
    assert estimated.weight_bytes is not None
    assert estimated.weight_bytes / 2 == pytest.approx(8.03e9, rel=0.01)
    assert estimated.kv_bytes_per_token == 128 * 1024
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert model_size(tmp_path) == ModelSize(weight_bytes=1000, kv_bytes_per_token=128 * 1024)
    index = {"metadata": {"total_size": 3 * GIB}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    config.write_text(json.dumps({**CONFIG, "kv_lora_rank": 512}))
    assert model_size(tmp_path) == ModelSize(weight_bytes=3 * GIB, kv_bytes_per_token=None)
    assert model_size(tmp_path / "none") is None


def test_requests_longer_than_the_context_are_refused(engine: dict[str, Any]) -> None:
    """The model states what it holds, a flag may say less; rescaled positions are left alone."""
    says = "found 1000 (input_tokens + output_tokens)"
    config = Path(engine["model"]) / "config.json"

    assert not any(says in p for p in findings(study(engine)).problems)
    assert any(
        says in p for p in findings(study(engine, flags=("--context-length", "999"))).problems
    )
    config.write_text(json.dumps({**CONFIG, "max_position_embeddings": 999}))
    assert any(says in p for p in findings(study(engine)).problems)
    config.write_text(
        json.dumps({**CONFIG, "max_position_embeddings": 999, "rope_scaling": {"factor": 4}})
    )
    assert not any(says in p for p in findings(study(engine)).problems)
