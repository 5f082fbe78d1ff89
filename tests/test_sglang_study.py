"""The main job on the real SGLang, on the CPU: a whole study through the command line."""

import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tuner_process import engines_of, events, tuner

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1800)]

STUDY = """
[study]
name = "small"
[engine]
kind = "sglang"
model = "{model}"
command = ["{python}", "-m", "sglang.launch_server"]
flags = ["--device", "cpu", "--load-format", "dummy", "--max-total-tokens", "20000"]
startup_timeout_s = 300.0
[engine.env]
OMP_NUM_THREADS = "1"
HF_HUB_OFFLINE = "1"
[workload]
kind = "mixed"
[[workload.shapes]]
input_tokens = 32
output_tokens = 24
[[workload.shapes]]
input_tokens = 160
output_tokens = 8
prefix_groups = 4
prefix_tokens = 96
[workload.load]
concurrency = 12
rounds = 4
[objective.limits]
ttft_p95_ms = 60000
[search]
launches = 8
[search.knobs]
schedule_policy = ["fcfs", "lpm"]
max_running_requests = {{ low = 1, high = 32, log = true }}
token_budget = {{ low = 64, high = 512, step = 64 }}
mem_fraction_static = {{ low = 0.3, high = 0.6, step = 0.05 }}
"""
FIELDS = {
    "schedule_policy": "schedule_policy",
    "max_running_requests": "max_running_requests",
    "token_budget": "chunked_prefill_size",
    "mem_fraction_static": "mem_fraction_static",
}


@pytest.fixture(scope="module")
def study(
    sglang_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """Run the study once; return its working directory and the answer."""
    folder = tmp_path_factory.mktemp("real")
    text = STUDY.format(model=tiny_model, python=sglang_python)
    (folder / "study.toml").write_text(text)
    ran = tuner(folder, "tune", "study.toml", "--json", timeout_s=1700)
    assert ran.code == 0, ran.err
    return folder, ran.json()


def test_every_launch_ran_with_what_was_asked(study: tuple[Path, dict[str, Any]]) -> None:
    """Two policies and four settings of the rest ran, and each engine says it used its setting."""
    folder, answer = study
    finished = events(folder, "finished")
    assert {e["outcome"]["state"] for e in finished} == {"measured"}, finished
    assert answer["notes"] == []
    stages = [e["stage"] for e in events(folder, "launched")]
    assert stages[:7] == ["baseline", "policy", "policy", *["capacity"] * 4]
    # the other policy was measured already where the best setting is one of the policy stage
    assert stages[7:] in ([], ["policy again"])
    assert len(finished) == len(stages)
    for event in events(folder, "launched"):
        path = folder / "studies" / "small" / "launches" / f"{event['number']:03d}"
        info = json.loads((path / "server_info.json").read_text())
        for knob, value in event["candidate"].items():
            assert info[FIELDS[knob]] == value, (event["number"], knob)


def test_mlflow_holds_the_study_and_every_launch(study: tuple[Path, dict[str, Any]]) -> None:
    """A parent with the snapshot, and a child with the records of each launch."""
    folder, _ = study
    with sqlite3.connect(folder / "mlruns" / "mlflow.db") as store:
        runs = dict(store.execute("select run_uuid, artifact_uri from runs").fetchall())
        children = {
            run
            for (run,) in store.execute(
                "select run_uuid from tags where key = 'mlflow.parentRunId'"
            )
        }
    (parent,) = runs.keys() - children
    assert len(children) == len(events(folder, "finished"))
    assert "sglang==0.5.23" in _artifact(runs[parent], "environment.txt").read_text().lower()
    for child in children:
        records = _artifact(runs[child], "requests.jsonl").read_text().splitlines()
        assert sum(json.loads(r)["phase"] == "measured" for r in records) == 48


def test_the_printed_command_starts_the_winner(study: tuple[Path, dict[str, Any]]) -> None:
    """Pasted into a shell, the winner's line starts a server with the winner's settings."""
    folder, answer = study
    command = answer["winner"]["command"]
    port = int(command.split("--port ")[1].split()[0])
    server = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        info = _server_info(server, f"http://127.0.0.1:{port}")
        for knob, value in answer["winner"]["setting"].items():
            assert info[FIELDS[knob]] == value
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)


def test_nothing_is_left_running(study: tuple[Path, dict[str, Any]]) -> None:
    """The study is over, and so is every engine it started."""
    folder, _ = study
    assert engines_of(folder) == []


def _artifact(uri: str, name: str) -> Path:
    (found,) = Path(uri.removeprefix("file://")).rglob(name)
    return found


def _server_info(server: subprocess.Popen[bytes], url: str) -> dict[str, Any]:
    end = time.monotonic() + 240
    while time.monotonic() < end:
        assert server.poll() is None, "the server died"
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                info: dict[str, Any] = httpx.get(f"{url}/server_info", timeout=5).json()
                return info
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{url} did not get ready")
