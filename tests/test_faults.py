"""Engines that go wrong on purpose: what a trial says of each, how soon, and what is left."""

import fcntl
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runners import (
    Faulted,
    Invalid,
    Measured,
    Outcome,
    Rejected,
    TrialSpec,
    listener,
    process_table,
)
from runners.cause import Cause
from runners.emulated import faults
from runners.emulated.settings import parse
from runners.janitor import STUDY_MARK
from runners.spec import EngineSpec, LoadSpec, WorkloadSpec
from runners.trial import run_trial
from runners.workload import plan, write_plan
from tests.tuner_process import abandoned_memory, engines_of, events, tuner, write_study

STUDY = f"fault-test-{os.getpid()}"
CONCURRENCY, ROUNDS = 4, 8
SOON_S = 5.0  # from the engine's last word to the trial's verdict
FLAGS = ["--model-path", "Llama-3.1-8B", "--emulated-hardware", "A100-80G"]


@dataclass(frozen=True)
class Seen:
    """A trial of a faulty engine, and what it left on disk."""

    outcome: Outcome
    spec: TrialSpec
    verdict_at: float  # on the clock of the file system

    @property
    def measured(self) -> Measured:
        assert isinstance(self.outcome, Measured), self.outcome
        return self.outcome

    @property
    def reason(self) -> str:
        assert not isinstance(self.outcome, Measured)
        return self.outcome.reason

    @property
    def log(self) -> Path:
        return self.spec.folder / "engine.log"

    def json(self, name: str) -> Any:
        return json.loads((self.spec.folder / name).read_bytes())


Look = Callable[..., Seen]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Return what tries an engine with the faults given, and finds that nothing was left."""
    # How well a busy machine keeps an emulated engine's clock is not the claim here.
    monkeypatch.setattr("runners.trial.MOST_LAG_MS", float("inf"))
    monkeypatch.setattr("runners.measure.HALTED_LOOP_LAG_MS", float("inf"))
    load = LoadSpec(
        concurrency=CONCURRENCY,
        rounds=ROUNDS,
        first_token_timeout_s=5.0,
        stall_timeout_s=0.5,
        total_timeout_s=10.0,
    )
    workload = WorkloadSpec(kind="fixed", input_tokens=32, output_tokens=24, load=load)
    path = tmp_path / "workload.jsonl"
    sha256 = write_plan(path, plan(workload, vocabulary=2000))

    def look(
        *wanted: str,
        startup_timeout_s: float = 20.0,
        startup_stall_s: float = 300.0,
        **candidate: int,
    ) -> Seen:
        spec = TrialSpec(
            study_id=STUDY,
            number=0,
            candidate=candidate,
            engine=EngineSpec(
                kind="emulated",
                model="Llama-3.1-8B",
                hardware="A100-80G",
                speed=10.0,
                flags=tuple(word for one in wanted for word in ("--emulated-fault", one)),
                port=listener.free_port(),
                startup_timeout_s=startup_timeout_s,
                startup_stall_s=startup_stall_s,
                stop_grace_s=1.0,
            ),
            workload=workload,
            workload_path=path,
            workload_sha256=sha256,
            folder=tmp_path / "trial",
            environment_names=("PATH",),
        )
        before = abandoned_memory()
        seen = Seen(run_trial(spec), spec, time.time())
        _assert_nothing_left(spec, before)
        return seen

    return look


def _assert_nothing_left(spec: TrialSpec, before: set[str]) -> None:
    assert process_table.marked(STUDY_MARK, STUDY) == []
    assert spec.engine.port is not None
    assert listener.holder(spec.engine.port) is None
    assert abandoned_memory() <= before


# --- a verdict in words -------------------------------------------------------------------------

DEATHS: list[tuple[tuple[str, ...], type[Outcome], str]] = [
    (("die_at_start:after=2,code=7",), Faulted, "(exit code 7) and gave no reason; its last line"),
    (("fill_log:mib=48", "die_at_start:code=7"), Faulted, "ended on purpose: die_at_start"),
    (("fill_log:mib=2,width=900000", "die_at_start:code=7"), Faulted, "ended on purpose"),
    (
        ("leave_shared_memory", "busy_for:seconds=2.5", "crash_at_request:number=12"),
        Rejected,
        "died under load: AcceleratorError: CUDA error: an illegal memory access",
    ),
    (("crash_at_request:number=1",), Rejected, "crashed while it started: AcceleratorError"),
    (("oom_at_concurrency:running=3",), Rejected, "ran out of memory under load"),
    (
        ("oom_at_concurrency:running=3", "orphan", "fill_log"),
        Rejected,
        "lower mem_fraction_static",
    ),
]


@pytest.mark.parametrize(("wanted", "kind", "sentence"), DEATHS, ids=lambda v: str(v)[:40])
def test_a_death_is_told_at_once_and_in_words(
    look: Look, wanted: tuple[str, ...], kind: type[Outcome], sentence: str
) -> None:
    """Verdict and reason come within seconds of the engine's last word, however it dies."""
    seen = look(*wanted)
    assert isinstance(seen.outcome, kind)
    assert sentence in seen.reason
    assert seen.verdict_at - seen.log.stat().st_mtime < SOON_S


@pytest.mark.parametrize("fault", ["hang_in_startup", "never_ready", "busy_for:seconds=60"])
def test_an_engine_that_does_not_get_ready_is_given_up(look: Look, fault: str) -> None:
    """Neither a closed port nor a 503 without end outlasts the limit."""
    seen = look(fault, startup_timeout_s=2)
    assert isinstance(seen.outcome, Rejected)
    assert "not ready within 2 s" in seen.reason
    assert "engine.startup_timeout_s" in seen.reason


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("hang_dying", "crashed while it started: AcceleratorError"),
        ("hang_dying:requests=12", "died under load: AcceleratorError"),
    ],
)
def test_an_engine_that_hangs_as_it_dies_is_not_waited_for(
    look: Look, fault: str, sentence: str
) -> None:
    """It announced its end and did not come to it: its log is the verdict, seconds later."""
    seen = look(fault, startup_timeout_s=60)
    assert isinstance(seen.outcome, Rejected)
    assert sentence in seen.reason
    assert seen.outcome.cause is Cause.CRASH
    assert seen.verdict_at - seen.log.stat().st_mtime < 3 * SOON_S


def test_a_start_that_stands_still_is_given_up_before_the_limit(look: Look) -> None:
    """What it was doing, its last line and the field to raise are named."""
    seen = look("hang_in_startup", startup_timeout_s=60, startup_stall_s=1)
    assert isinstance(seen.outcome, Rejected)
    assert seen.outcome.cause is Cause.NOT_READY
    assert "1 s" in seen.reason
    assert "its last line: " in seen.reason
    assert "engine.startup_stall_s" in seen.reason


def test_a_start_that_gets_on_slowly_is_waited_for(look: Look) -> None:
    """A second without news is no end when the limit is a longer one."""
    seen = look("listen_late:after=1.5", startup_stall_s=4)
    assert seen.measured.measurement.failed_requests == 0


@pytest.mark.parametrize(
    ("fault", "kind", "sentence"),
    [
        ("other_model", Faulted, "with model_path 'Llama-3.1-8B', found 'another-model'"),
        ("error_in_stream", Rejected, "with in_stream_error: the stream broke on purpose"),
        ("stall_stream", Rejected, "with timeout_stall: no token for 0.5 s"),
        ("short_output", Rejected, "with length: asked for 24 output tokens, found 2"),
        ("short_output:every=9", Invalid, "every answer must have the length asked for"),
        ("no_such_fault", Faulted, "a fault must be one of die_at_start"),
    ],
)
def test_an_engine_that_serves_badly_is_told_in_words(
    look: Look, fault: str, kind: type[Outcome], sentence: str
) -> None:
    """An answer that cannot be used is never taken for one that can."""
    seen = look(fault)
    assert isinstance(seen.outcome, kind)
    assert sentence in seen.reason


# --- a measurement that knows -------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["ignore_sigterm", "orphan", "leave_shared_memory", "fill_log"])
def test_what_an_engine_leaves_is_cleared_away(look: Look, fault: str) -> None:
    """A deaf engine, its deaf grandchild, its shared memory: the facts stay, they do not."""
    facts = look(fault).measured.measurement
    assert facts.failed_requests == 0
    assert facts.measured_requests == CONCURRENCY * ROUNDS


@pytest.mark.parametrize("fault", ["listen_late:after=1", "busy_for:seconds=1"])
def test_a_late_engine_is_waited_for(look: Look, fault: str) -> None:
    """An engine that needs its time is measured, and its time is in the facts."""
    facts = look(fault).measured.measurement
    assert facts.startup_s is not None
    assert facts.startup_s >= 1
    assert facts.failed_requests == 0


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ("error_in_stream:every=9", "in_stream_error"),
        ("stall_stream:every=9", "timeout_stall"),
    ],
)
def test_some_bad_streams_are_counted(look: Look, fault: str, failure: str) -> None:
    """Failures that do not stop the load are facts, by kind, that a limit can judge."""
    facts = look(fault).measured.measurement
    assert set(facts.failures) == {failure}
    assert 0 < facts.failed_share < 0.5
    assert facts.failed_requests == facts.failures[failure]


def test_a_silent_clamp_is_seen(look: Look) -> None:
    """What the engine really runs with is read back, not believed."""
    seen = look("clamp:max_running_requests=2", max_running_requests=4)
    assert seen.measured.effective["max_running_requests"] == 2
    assert seen.json("server_info.json")["max_running_requests"] == 4
    changed = seen.json("effective.json")["changed"]
    assert changed == {"max_running_requests": {"requested": 4, "effective": 2}}


def test_a_slow_leak_shows_in_the_log(look: Look) -> None:
    """Every hundred steps are slower than those before; the engine's own words tell."""
    seen = look("slow_leak:factor=3")
    assert seen.measured.measurement.failed_requests == 0
    rates = [float(r) for r in re.findall(r"gen throughput.*?: ([\d.]+)", seen.log.read_text())]
    assert len(rates) >= 5
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0] / 3


# --- the words ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("explode", "a fault must be one of die_at_start, hang_in_startup"),
        ("clamp", "clamp needs max_running_requests"),
        ("clamp:to=3", "clamp has the keys max_running_requests, found 'to'"),
        ("orphan:age=3", "orphan has no keys, found 'age'"),
        ("die_at_start:after", "die_at_start takes key=value, found 'after'"),
        ("die_at_start:after=1,after=2", "die_at_start takes each key once"),
        ("die_at_start:code=256", "code must be a whole number from 0 to 255, found '256'"),
        ("stall_stream:every=0", "every must be a whole number of at least 1, found '0'"),
        ("slow_leak:factor=nan", "factor must be a number of at least 1, found 'nan'"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], words: str, sentence: str
) -> None:
    """An unknown kind or key ends with 2 and says what there is."""
    with pytest.raises(SystemExit) as end:
        parse([*FLAGS, "--emulated-fault", words])
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_every_kind_is_in_the_help_and_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    """The help shows a form of each fault that works once its letters are numbers."""
    with pytest.raises(SystemExit):
        parse(["--help"])
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for name in faults.KINDS:
        (form,) = [line for line in said if line.partition(":")[0] == name]
        words = form.replace("=N", "=3").replace("=X", "=1.5")
        (found,) = parse([*FLAGS, "--emulated-fault", words]).emulated_fault
        assert str(found) == words


# --- a whole study ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_study_finds_its_winner_below_the_concurrency_that_kills(tmp_path: Path) -> None:
    """The baseline and all else that runs 12 requests dies under load; the search learns that."""
    study = write_study(tmp_path)
    deadly = 'flags = ["--emulated-fault", "oom_at_concurrency:running=12"]'
    study.write_text(study.read_text().replace("speed = 8.0", f"speed = 8.0\n{deadly}"))
    ran = tuner(tmp_path, "tune", "study.toml", "--json")

    assert ran.code == 0, ran.err
    answer = ran.json()
    assert answer["verdict"] == "found"
    assert answer["winner"]["setting"]["max_running_requests"] < 12
    assert "oom_at_concurrency" in answer["winner"]["command"]
    states = [e["outcome"] for e in events(tmp_path, "finished")]
    dead = [s["reason"] for s in states if s["state"] == "rejected"]
    assert dead
    assert all("ran out of memory under load" in reason for reason in dead)
    assert engines_of(tmp_path) == []
    with (tmp_path / "studies" / "small" / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
