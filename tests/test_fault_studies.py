"""Every fault of the emulated engine through `tuner tune`: verdict, words, time, nothing left."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from runners import listener
from runners.cause import Cause
from runners.emulated import faults
from tests.tuner_process import (
    assert_nothing_left,
    events,
    shared_memory,
    tuner,
    write_faulty_study,
)

SOON_S = 5.0  # from an engine's last word to its outcome in the journal
FOUND, INFEASIBLE, STOPPED = 0, 3, 4


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault, and what a study must make of it."""

    faults: tuple[str, ...]
    code: int
    state: str = "measured"
    reason: str = ""
    cause: Cause | None = None
    longest_s: float = 20.0  # one launch, with its engine's start and stop
    startup_timeout_s: float = 20.0


CASES = {
    "die_at_start": Case(
        faults=("die_at_start:after=2,code=7",),
        code=STOPPED,
        state="faulted",
        reason="(exit code 7) and gave no reason",
        cause=Cause.UNKNOWN,
        longest_s=5.0,
    ),
    "hang_in_startup": Case(
        faults=("hang_in_startup",),
        code=INFEASIBLE,
        state="rejected",
        reason="not ready within 2 s",
        cause=Cause.NOT_READY,
        startup_timeout_s=2.0,
        longest_s=6.0,
    ),
    "never_ready": Case(
        faults=("never_ready",),
        code=INFEASIBLE,
        state="rejected",
        reason="not ready within 2 s",
        cause=Cause.NOT_READY,
        startup_timeout_s=2.0,
        longest_s=6.0,
    ),
    "listen_late": Case(faults=("listen_late:after=1",), code=FOUND),
    "busy_for": Case(faults=("busy_for:seconds=1",), code=FOUND),
    "fill_log": Case(faults=("fill_log:mib=16",), code=FOUND),
    "ignore_sigterm": Case(faults=("ignore_sigterm",), code=FOUND),
    "orphan": Case(faults=("orphan",), code=FOUND),
    "clamp": Case(faults=("clamp:max_running_requests=2",), code=FOUND),
    "other_model": Case(
        faults=("other_model",),
        code=STOPPED,
        state="faulted",
        reason="found 'another-model'",
    ),
    "leave_shared_memory": Case(
        faults=("leave_shared_memory", "busy_for:seconds=2.5", "crash_at_request:number=12"),
        code=INFEASIBLE,
        state="rejected",
        reason="died under load",
        cause=Cause.CRASH,
    ),
    "crash_at_request": Case(
        faults=("crash_at_request:number=12",),
        code=INFEASIBLE,
        state="rejected",
        reason="died under load: AcceleratorError",
        cause=Cause.CRASH,
    ),
    "hang_dying": Case(
        faults=("hang_dying:requests=12",),
        code=INFEASIBLE,
        state="rejected",
        reason="died under load: AcceleratorError",
        cause=Cause.CRASH,
        longest_s=15.0,
    ),
    "oom_at_concurrency": Case(
        faults=("oom_at_concurrency:running=3",),
        code=INFEASIBLE,
        state="rejected",
        reason="out of memory under load",
        cause=Cause.LOAD_MEMORY,
    ),
    "eat_memory": Case(faults=("eat_memory:mib=64",), code=FOUND),  # there is room for it
    "error_in_stream": Case(
        faults=("error_in_stream",),
        code=INFEASIBLE,
        state="rejected",
        reason="in_stream_error",
        cause=Cause.UNUSABLE_ANSWERS,
    ),
    "stall_stream": Case(
        faults=("stall_stream",),
        code=INFEASIBLE,
        state="rejected",
        reason="no token for 0.5 s",
        cause=Cause.UNUSABLE_ANSWERS,
    ),
    "short_output": Case(
        faults=("short_output",),
        code=INFEASIBLE,
        state="rejected",
        reason="asked for 24 output tokens, found 2",
        cause=Cause.UNUSABLE_ANSWERS,
    ),
    "slow_leak": Case(faults=("slow_leak:factor=2",), code=FOUND),
}


def test_the_suite_knows_every_fault_of_the_plan() -> None:
    """A new kind of fault needs its case here."""
    assert CASES.keys() == faults.KINDS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_study_makes_of_a_fault_what_it_must(tmp_path: Path, name: str) -> None:
    """Exit code, outcome, sentence and cause are right, soon after the fault; nothing is left."""
    case, port, before = CASES[name], listener.free_port(), shared_memory()
    write_faulty_study(
        tmp_path,
        *case.faults,
        port=port,
        startup_timeout_s=case.startup_timeout_s,
    )

    ran = tuner(tmp_path, "tune", "study.toml", "--json", timeout_s=120)

    assert_nothing_left(tmp_path, port=port, shared_before=before)
    # On a busy machine the emulated engine falls behind its clock, and is measured again.
    ended = [e for e in events(tmp_path, "finished") if e["outcome"]["state"] != "invalid"]
    assert ran.code == case.code, (ran.err, ended)
    assert "Traceback" not in ran.err
    assert ended
    for event in ended:
        _assert_told(case, event["outcome"])
        assert event["took_s"] < case.longest_s
        assert _seconds_after_its_last_word(tmp_path, event) < SOON_S
    assert case.reason in ran.json()["reason"] or case.code != STOPPED


def _assert_told(case: Case, outcome: dict[str, Any]) -> None:
    assert outcome["state"] == case.state, outcome
    assert case.reason in outcome.get("reason", "")
    assert case.cause is None or outcome["cause"] == case.cause.value


def _seconds_after_its_last_word(folder: Path, event: dict[str, Any]) -> float:
    log = folder / "studies" / "small" / "launches" / f"{event['number']:03d}" / "engine.log"
    return datetime.fromisoformat(event["at"]).timestamp() - log.stat().st_mtime
