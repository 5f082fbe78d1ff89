"""Whole trials against a small fake engine that is a real process with a real HTTP server."""

import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runners import Faulted, Invalid, Measured, Outcome, Rejected, TrialSpec, process_table
from runners.cause import Cause
from runners.janitor import STUDY_MARK
from runners.spec import EngineSpec, LoadSpec, WorkloadSpec
from runners.trial import run_trial
from runners.workload import plan, write_plan
from search_spaces import Value

FAKE_ENGINE = Path(__file__).parent / "fake_engine.py"
STUDY = f"trial-test-{os.getpid()}"


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., TrialSpec]:
    """Return a maker of trials of the fake engine, which behaves as asked."""
    load = LoadSpec(concurrency=4, rounds=6, warmup_rounds=1)
    workload = WorkloadSpec(kind="fixed", input_tokens=16, output_tokens=8, load=load)
    path = tmp_path / "workload.jsonl"
    sha256 = write_plan(path, plan(workload, vocabulary=2000))

    def make(
        fake: str = "",
        candidate: dict[str, Value] | None = None,
        port: int | None = None,
        flags: tuple[str, ...] = (),
        startup_timeout_s: float = 20.0,
    ) -> TrialSpec:
        engine = EngineSpec(
            kind="sglang",
            model="a-model",
            command=(sys.executable, "-I", "-S", str(FAKE_ENGINE), f"--fake={fake}"),
            flags=("--device", "cpu", *flags),
            env={"STAGE": "trial"},
            port=port,
            startup_timeout_s=startup_timeout_s,
            stop_grace_s=0.3,
        )
        return TrialSpec(
            study_id=STUDY,
            number=0,
            candidate=candidate or {},
            engine=engine,
            workload=workload,
            workload_path=path,
            workload_sha256=sha256,
            folder=tmp_path / "trial-0",
            environment_names=("PATH", "HF_TOKEN"),
        )

    return make


def _nothing_left() -> bool:
    return process_table.marked(STUDY_MARK, STUDY) == []


Make = Callable[..., TrialSpec]


def test_a_trial_measures_and_leaves_its_evidence_and_nothing_else(
    spec: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A good candidate gives facts, the effective settings, and files that let it be repeated."""
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    said: list[str] = []
    trial = spec(candidate={"schedule_policy": "lpm", "max_running_requests": 100})
    outcome = run_trial(trial, said.append)
    assert isinstance(outcome, Measured)
    assert outcome.measurement.measured_requests == 24
    assert outcome.measurement.failed_requests == 0
    assert outcome.measurement.kv_pool_tokens == 20000
    assert outcome.measurement.startup_s is not None
    assert outcome.effective["schedule_policy"] == "lpm"
    assert outcome.effective["max_running_requests"] == 64
    assert outcome.engine_version == "0.0-fake"
    assert said[0] == "engine starting"
    assert said[-1] == "engine stopping"
    assert _nothing_left()
    changed = json.loads((trial.folder / "effective.json").read_bytes())["changed"]
    assert changed == {"max_running_requests": {"requested": 100, "effective": 64}}
    line = (trial.folder / "launch.txt").read_text()
    assert line.startswith("STAGE=trial ")
    assert "--schedule-policy lpm" in line
    written = [p for p in trial.folder.iterdir() if b"hf_very_secret" in p.read_bytes()]
    assert written == []
    assert {p.name for p in trial.folder.iterdir()} >= {
        *("launch.json", "engine.log", "server_info.json", "measurement.json", "client.json"),
    }


@pytest.mark.parametrize(
    ("fake", "kind", "sentence"),
    [
        ("exit", Rejected, "chunked_prefill_size must be divisible by page_size"),
        ("silent", Faulted, "exit code 3"),
        ("missing-model", Faulted, "check engine.model"),
        ("oom", Rejected, "raise mem_fraction_static"),
        ("die-under-load", Rejected, "under load"),
        ("other-model", Faulted, "must be the one we started, with model_path 'a-model'"),
        ("refuse", Faulted, "found 404"),
    ],
)
def test_every_failure_has_its_outcome_and_its_sentence(
    spec: Make, fake: str, kind: type[Outcome], sentence: str
) -> None:
    """Whatever the engine does, the trial comes back with a verdict and leaves nothing running."""
    outcome = run_trial(spec(fake))
    assert isinstance(outcome, kind)
    assert not isinstance(outcome, Measured)
    assert sentence in outcome.reason
    assert _nothing_left()


@pytest.mark.parametrize("fake", ["never-ready", "hang", "cold"])
def test_an_engine_that_is_never_ready_is_given_up(spec: Make, fake: str) -> None:
    """A closed port, a hanging request, a warm-up without end: none outlasts the limit."""
    outcome = run_trial(spec(fake, startup_timeout_s=1.0))
    assert isinstance(outcome, Rejected)
    assert "not ready within 1 s" in outcome.reason
    assert _nothing_left()


def test_an_engine_that_never_idles_gives_no_measurement(
    spec: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused cache flush is not a success: somebody else's requests are running."""
    monkeypatch.setattr("runners.sglang_api.IDLE_LIMIT_S", 0.3)
    outcome = run_trial(spec("busy"))
    assert isinstance(outcome, Invalid)
    assert "must be idle before the load" in outcome.reason


def test_orphans_of_the_engine_end_with_the_trial(spec: Make) -> None:
    """A daemonised child that ignores SIGTERM does not keep the GPU's memory."""
    assert isinstance(run_trial(spec("orphan")), Measured)
    assert _nothing_left()


def test_a_port_in_use_is_a_fault_before_anything_starts(spec: Make) -> None:
    """The holder is named and left alone; the engine is not started to find out in minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        trial = spec(port=port)
        outcome = run_trial(trial)
    assert isinstance(outcome, Faulted)
    assert f"port {port} is held by another process (pid {os.getpid()}" in outcome.reason
    assert not (trial.folder / "engine.log").exists()


@pytest.mark.parametrize(
    ("candidate", "sentence"),
    [
        ({"max_running_requests": 0}, "SGLang would silently run 1"),
        ({"mem_fraction_static": 1.5}, "at most 0.99"),
        ({"--radix-trees": True}, "SGLang has no flag --radix-trees"),
    ],
)
def test_a_value_sglang_would_mishandle_never_starts_an_engine(
    spec: Make, candidate: dict[str, Value], sentence: str
) -> None:
    """What SGLang accepts and then does otherwise, or dies of, is refused beforehand."""
    trial = spec(candidate=candidate)
    outcome = run_trial(trial)
    assert isinstance(outcome, Rejected)
    assert sentence in outcome.reason
    assert not (trial.folder / "engine.log").exists()


def test_our_own_flags_are_not_the_users(spec: Make) -> None:
    """A port or host in engine.flags would have us measure another server."""
    outcome = run_trial(spec(flags=("--host=0.0.0.0",)))
    assert outcome == Faulted(
        reason="engine.flags must not set what the tuner sets itself, found --host=0.0.0.0",
        lasting=True,
        cause=Cause.BAD_FLAG,
    )


def test_a_changed_workload_stops_the_study(spec: Make) -> None:
    """Trials of different traffic do not compare."""
    outcome = run_trial(replace(spec(), workload_sha256="0" * 64))
    assert isinstance(outcome, Faulted)
    assert outcome.lasting
    assert "SHA-256" in outcome.reason
