"""What a Ray cluster cannot do is said, never waited for."""

from pathlib import Path

import pytest

from runners.nvml_gpu import read_gpus
from tests.tuner_process import events, tuner, write_study

pytestmark = pytest.mark.slow


@pytest.mark.skipif(bool(read_gpus()), reason="this machine has a GPU")
def test_a_launch_that_needs_a_gpu_is_not_waited_for_without_one(tmp_path: Path) -> None:
    """Ray would let it wait for ever; the study stops with what is missing, exit code 4."""
    study = write_study(tmp_path)
    text = study.read_text().replace('hardware = "A100-80G"\nspeed = 8.0', 'command = ["true"]')
    study.write_text(text.replace('"emulated"', '"sglang"') + "[tracking]\nenabled = false\n")

    ran = tuner(tmp_path, "tune", "study.toml", "--json")

    assert ran.code == 4, ran.err
    assert "a launch needs 1 GPU(s), and Ray sees 0" in ran.json()["reason"]
    assert events(tmp_path, "launched") == []


def test_a_cluster_that_is_not_there_is_named_within_seconds(tmp_path: Path) -> None:
    """Nobody listens at the address: one sentence, nothing launched."""
    study = write_study(tmp_path)
    study.write_text(
        study.read_text() + '[cluster]\naddress = "127.0.0.1:9"\n[tracking]\nenabled = false\n'
    )

    ran = tuner(tmp_path, "tune", "study.toml", "--json", timeout_s=60)

    assert ran.code == 4, ran.err
    assert "cluster.address must be a Ray cluster's" in ran.json()["reason"]
    assert events(tmp_path, "launched") == []
