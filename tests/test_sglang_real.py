"""Trials of the real SGLang on the CPU, with a tiny model of random weights."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runners import Faulted, Measured, TrialSpec, process_table, sglang
from runners.diagnosis import Ending, diagnose
from runners.engine_process import EngineProcess, launch
from runners.errors import CandidateRejectedError
from runners.janitor import STUDY_MARK
from runners.listener import free_port
from runners.spec import EngineSpec, LoadSpec, WorkloadSpec
from runners.trial import run_trial
from runners.workload import plan, write_plan
from search_spaces import Candidate, Value

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

STUDY = f"real-{os.getpid()}"
FLAGS = ("--device", "cpu", "--load-format", "dummy", "--max-total-tokens", "20000")
NAMES = ("PATH", "HOME", "LANG", "TMPDIR")
CANDIDATE: dict[str, Value] = {
    "schedule_policy": "lpm",
    "max_running_requests": 8,
    "token_budget": 128,
    "mem_fraction_static": 0.5,
}
# A worker that tries the pickled trial and writes down what it hears.
WORKER = """
import pathlib, pickle, sys
from runners.trial import run_trial
spec = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
print(run_trial(spec, lambda text: print(text, flush=True)), flush=True)
"""


@pytest.fixture
def engine(sglang_python: Path, tiny_model: Path) -> EngineSpec:
    """Return the real engine on the CPU."""
    return EngineSpec(
        kind="sglang",
        model=str(tiny_model),
        command=(str(sglang_python), "-m", "sglang.launch_server"),
        flags=FLAGS,
        env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        startup_timeout_s=240.0,
    )


def _trial(engine: EngineSpec, folder: Path, rounds: int = 3) -> TrialSpec:
    load = LoadSpec(concurrency=16, rounds=rounds, warmup_rounds=1)
    workload = WorkloadSpec(
        kind="fixed",
        input_tokens=96,
        output_tokens=16,
        prefix_groups=2,
        prefix_tokens=64,
        load=load,
    )
    path = folder / "workload.jsonl"
    return TrialSpec(
        study_id=STUDY,
        number=0,
        candidate=CANDIDATE,
        engine=engine,
        workload=workload,
        workload_path=path,
        workload_sha256=write_plan(path, plan(workload, vocabulary=2048)),
        folder=folder / "trial-0",
        environment_names=NAMES,
    )


def _left() -> list[int]:
    return process_table.marked(STUDY_MARK, STUDY)


def _shared_memory() -> set[Path]:
    files = (file for pid in _left() for file in process_table.open_files(pid))
    return {Path(file) for file in files if file.startswith("/dev/shm/sglang_")}  # noqa: S108


def _until(true: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _end(process: EngineProcess, limit_s: float = 240.0) -> Ending:
    assert _until(lambda: process.exit_code() is not None, limit_s)
    code = process.exit_code()
    assert code is not None
    return Ending(exit_code=code, log=process.log_tail())


def test_a_real_trial_runs_what_was_asked_and_leaves_nothing(
    engine: EngineSpec, tmp_path: Path
) -> None:
    """The server's own account agrees with the candidate, its counters with the load."""
    trial = _trial(engine, tmp_path)
    shared: set[Path] = set()
    outcome = run_trial(trial, lambda _: shared.update(_shared_memory()))
    assert isinstance(outcome, Measured), outcome
    info = json.loads((trial.folder / "server_info.json").read_bytes())
    assert info["schedule_policy"] == "lpm"
    assert info["max_running_requests"] == 8
    assert info["chunked_prefill_size"] == 128
    assert info["max_prefill_tokens"] == 16384
    assert info["mem_fraction_static"] == 0.5
    changed = json.loads((trial.folder / "effective.json").read_bytes())["changed"]
    assert changed == {}
    assert outcome.engine_version == "0.5.23"
    measurement = outcome.measurement
    assert measurement.measured_requests == 48
    assert measurement.failed_requests == 0
    assert measurement.kv_pool_tokens == 20000
    assert measurement.prefix_cache_hit_rate is not None
    assert 0.3 < measurement.prefix_cache_hit_rate < 0.9
    assert measurement.running_peak is None or measurement.running_peak <= 8
    assert _left() == []
    assert shared
    assert not any(file.exists() for file in shared)


def test_flags_of_other_engines_are_named_with_the_right_ones(
    engine: EngineSpec, tmp_path: Path
) -> None:
    """SGLang's own refusal, 150 kB down its log, becomes one sentence that helps."""
    words = sglang.command(engine, Candidate.of({}), free_port())
    with launch(
        [*words, "--max-num-batched-tokens", "4096", "--radix-trees"],
        env=sglang.environment(engine, NAMES),
        log_path=tmp_path / "log",
        grace_s=5,
        study_id=STUDY,
    ) as process:
        error = diagnose(_end(process))
    assert isinstance(error, CandidateRejectedError)
    assert "no flag --max-num-batched-tokens: " in str(error)
    assert "--chunked-prefill-size" in str(error)
    assert "--disable-radix-cache turns it off" in str(error)


def test_a_missing_model_stops_the_study(engine: EngineSpec, tmp_path: Path) -> None:
    """No setting and no retry brings the model back."""
    missing = engine.model_copy(update={"model": str(tmp_path / "no-model")})
    outcome = run_trial(_trial(missing, tmp_path))
    assert isinstance(outcome, Faulted)
    assert outcome.lasting
    assert "check engine.model" in outcome.reason
    assert _left() == []


def test_kill_9_of_the_worker_under_load_leaves_no_engine(
    engine: EngineSpec, tmp_path: Path
) -> None:
    """The worker is shot while its load runs: the engine's whole tree goes with it."""
    pickled = tmp_path / "trial.pickle"
    pickled.write_bytes(pickle.dumps(_trial(engine, tmp_path, rounds=400)))
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(pickled)], stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        heard = []
        for line in worker.stdout:
            heard.append(line)
            if line.startswith("measuring"):
                break
        assert heard[-1].startswith("measuring"), heard
        assert len(_left()) >= 4  # guardian, server, scheduler, detokenizer
        shared = _shared_memory()
        os.kill(worker.pid, signal.SIGKILL)
        assert _until(lambda: _left() == [], engine.stop_grace_s + 20)
    assert shared
    assert not any(file.exists() for file in shared)
