"""Trials of the real SGLang on the CPU, with a tiny model of random weights."""

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runners import Faulted, Measured, TrialSpec, process_table, sglang
from runners.diagnosis import Ending, diagnose
from runners.engine_process import EngineProcess, launch
from runners.errors import CandidateRejectedError
from runners.flag_check import BASELINE, judge
from runners.installed_flags import Account, argument_list, ask
from runners.janitor import STUDY_MARK
from runners.listener import free_port
from runners.spec import EngineSpec, LoadSpec, WorkloadSpec
from runners.trial import run_trial
from runners.workload import plan, write_plan
from search_spaces import Candidate, Value
from tests.tuner_process import until

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
# Words beside the fixed flags, and what the installed SGLang or its table of options says to them.
REFUSED_WORDS = {
    "--max-num-batched-tokens 4096": "SGLang has --chunked-prefill-size and --max-prefill-tokens",
    "--radix-trees": "--disable-radix-cache turns it off",
    "--disable-radix": "is an abbreviation, write the flag in full: --disable-radix-cache",
    "--schedule-policy banana": "--schedule-policy must be one of lpm, random, fcfs, ",
    "--max-running-requests abc": "--max-running-requests must be a whole number, found 'abc'",
    "--max-prefill-tokens 4q": "argument --max-prefill-tokens: ",
    "--page-size 16 --chunked-prefill-size 100": "must be divisible by page_size",
    "--schedule-conservativeness -1": "schedule_conservativeness must be non-negative",
    "--schedule-policy lpm --enable-priority-scheduling": "must be 'fcfs' or 'lof'",
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


def _end(process: EngineProcess, limit_s: float = 240.0) -> Ending:
    assert until(lambda: process.exit_code() is not None, limit_s)
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


def test_bad_flags_are_answered_before_an_engine_starts(
    engine: EngineSpec, tmp_path: Path
) -> None:
    """The installed SGLang itself refuses each in a sentence, all in one import of it."""
    base = argument_list(engine, Candidate.of({}))
    asked = {words: (*base, *words.split()) for words in REFUSED_WORDS}
    environment = sglang.environment(engine, NAMES)
    account = ask(engine, [base, *asked.values()], environment=environment, cache=tmp_path)

    assert isinstance(account, Account), account
    assert account.engine == "SGLang 0.5.23"
    assert len(account.options) > 500
    assert account.answers[base] is None
    for words, says in REFUSED_WORDS.items():
        verdict = judge(account, {BASELINE: asked[words]})
        (problem,) = verdict.problems
        assert says in problem, words
    corner = {BASELINE: base, "page": asked["--page-size 16 --chunked-prefill-size 100"]}
    assert judge(account, corner).problems == ()
    assert "the search will learn this as infeasible" in judge(account, corner).notes[0]
    again = ask(engine, [base], environment=environment, cache=tmp_path, timeout_s=0.001)
    assert isinstance(again, Account)  # from the cache: no time was given to ask


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
        assert until(lambda: _left() == [], engine.stop_grace_s + 20)
    assert shared
    assert not any(file.exists() for file in shared)
