"""What becomes of a launch whose worker fails."""

from pathlib import Path
from typing import Any

import pytest

from runners import EngineSpec, Faulted, LoadSpec, TrialSpec, WorkloadSpec
from tuner.ray_tune import died, launch_in_worker


def spec(folder: Path, candidate: dict[str, Any]) -> TrialSpec:
    return TrialSpec(
        study_id="s",
        number=0,
        candidate=candidate,
        engine=EngineSpec(kind="sglang", model="m"),
        workload=WorkloadSpec(
            kind="fixed",
            input_tokens=8,
            output_tokens=8,
            load=LoadSpec(concurrency=1, rounds=1),
        ),
        workload_path=folder / "workload.jsonl",
        workload_sha256="",
        folder=folder,
        environment_names=(),
    )


def test_a_failure_of_our_own_is_told_with_its_words(tmp_path: Path) -> None:
    """A fault in the tuner is not passed off as the machine's: the last line says what it was."""
    broken = spec(tmp_path, {"max_running_requests": object()})

    with pytest.raises(TypeError):
        launch_in_worker({"spec": broken, "stop_file": str(tmp_path / "stop")})
    outcome = died(tmp_path)
    assert isinstance(outcome, Faulted)
    assert "the tuner itself failed (TypeError: " in outcome.reason
    assert "Traceback" in (tmp_path / "error.txt").read_text()


def test_a_worker_that_was_killed_left_no_words(tmp_path: Path) -> None:
    """Without an error of ours it is the machine that ended the worker."""
    outcome = died(tmp_path)

    assert outcome == Faulted(reason="the Ray worker died while it ran the launch")
