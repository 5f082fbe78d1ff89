"""Bad and odd values of real SGLang flags: refused before an engine starts, or told by its end."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from runners import Faulted, Measured, Outcome, Rejected, TrialSpec, process_table
from runners.cause import Cause
from runners.janitor import STUDY_MARK
from runners.listener import free_port
from runners.memory_need import GIB, host_memory, unchunked_note
from runners.spec import EngineSpec, LoadSpec, WorkloadSpec
from runners.trial import run_trial
from runners.workload import plan, write_plan
from search_spaces import Value
from search_spaces.sglang import DEFAULT_MAX_PREFILL_TOKENS
from tuner.cli import main

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(600)]

STUDY = """
[study]
name = "odd"
[engine]
kind = "sglang"
model = {model}
command = [{python}, "-m", "sglang.launch_server"]
flags = {flags}
[engine.env]
OMP_NUM_THREADS = "1"
HF_HUB_OFFLINE = "1"
[workload]
kind = "fixed"
input_tokens = 64
output_tokens = 8
[workload.load]
concurrency = 4
rounds = 2
[search.knobs]
"--stream-interval" = [1, 2]
"""
CPU = ("--device", "cpu", "--load-format", "dummy")
BASE = (*CPU, "--max-total-tokens", "20000")
LAUNCHES = f"odd-{os.getpid()}"
LIMIT_KIB = 14_000_000  # of each process's address space: enough for an engine, and a small pool
REFUSED = {
    "--max-num-batched-tokens 4096": "SGLang has --chunked-prefill-size and --max-prefill-tokens",
    "--radix-trees": "--disable-radix-cache turns it off",
    "--schedule-policy banana": "--schedule-policy must be one of fcfs, lpm",
    "--schedule-policy priority": "SGLang lists it, but dies when it starts",
    "--max-running-requests abc": "--max-running-requests must be a whole number, found 'abc'",
    "--max-running-requests 0": "SGLang would silently run 1",
    "--chunked-prefill-size 4k": "--chunked-prefill-size must be a whole number, found '4k'",
    "--cuda-graph-max-bs 8": "renamed to --cuda-graph-max-bs-decode",
    "--cuda-graph-bs 1 2": "renamed to --cuda-graph-bs-decode",
    "--gpu-memory-utilization 0.9": "SGLang has --mem-fraction-static",
    "--chunked-prefill 128": "write the flag in full: --chunked-prefill-size",
    "--disable-radix": "write the flag in full: --disable-radix-cache",
    "--chunked-prefill-size 100 --page-size 16": "--page-size must divide --chunked-prefill-size",
    "--schedule-conservativeness -1": "--schedule-conservativeness must be at least 0, found -1",
    "--schedule-policy lpm --enable-priority-scheduling": "needs schedule_policy fcfs or lof",
    "--enable-hierarchical-cache --disable-radix-cache": "are mutually exclusive",
    "--prefill-decode-interval -1": "--prefill-decode-interval must be non-negative",
    "--mem-fraction-static 0": "--mem-fraction-static must be at least 0.05, found 0",
    "--mem-fraction-static 1.5": "--mem-fraction-static must be at most 0.99, found 1.5",
    "--mem-fraction-static nan": "--mem-fraction-static must be a finite number, found nan",
    "--schedule-conservativeness inf": "must be a finite number, found inf",
    "--watchdog-timeout nan": "--watchdog-timeout must be a number, found 'nan'",
    "--page-size 16 --page-size=32": "--page-size must be given once, found it 2 times",
    "--mem-fraction-static -1": "--mem-fraction-static must be at least 0.05, found -1",
}


@pytest.fixture(scope="module", autouse=True)
def _answers_kept_for_all_rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("flags")))
        yield


@pytest.mark.parametrize(("words", "says"), REFUSED.items())
def test_a_bad_value_is_refused_before_an_engine_starts(
    words: str,
    says: str,
    sglang_python: Path,
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    """`tuner check` ends with 2 and one sentence that says what to write."""
    code, said = _checked(tmp_path, sglang_python, str(tiny_model), words.split())

    assert code == 2
    assert says in said
    assert len(said.splitlines()) == 1


def test_a_model_that_is_not_there_is_refused(sglang_python: Path, tmp_path: Path) -> None:
    """The path is named; nothing is asked of the engine."""
    missing = str(tmp_path / "no-model")
    code, said = _checked(tmp_path, sglang_python, missing, [])

    assert code == 2
    assert f"{missing} is not a directory" in said


@pytest.fixture
def engine(sglang_python: Path, tiny_model: Path) -> Iterator[EngineSpec]:
    """Return the real engine on the CPU, its pool of no set size; nothing of it may be left."""
    yield EngineSpec(
        kind="sglang",
        model=str(tiny_model),
        command=(str(sglang_python), "-m", "sglang.launch_server"),
        flags=CPU,
        env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        startup_timeout_s=240.0,
    )
    assert process_table.marked(STUDY_MARK, LAUNCHES) == []


def test_a_policy_that_only_the_help_knows_stops_the_study(
    engine: EngineSpec, tmp_path: Path
) -> None:
    """The scheduler dies of it once the model is loaded; every candidate would."""
    flags = (*BASE, "--schedule-policy", "priority")
    outcome = _launched(engine.model_copy(update={"flags": flags}), tmp_path)

    assert isinstance(outcome, Faulted), outcome
    assert outcome.lasting
    assert outcome.cause is Cause.BAD_VALUE
    assert "lists the schedule policy priority, but does not have it" in outcome.reason
    assert "it stands in engine.flags" in outcome.reason


@pytest.mark.skipif(host_memory().total_bytes < 12 * GIB, reason="the pool would fit the limit")
def test_more_memory_than_there_is_asks_for_less(engine: EngineSpec, tmp_path: Path) -> None:
    """SGLang takes 1.5 for a share; the allocation of the KV pool is what fails."""
    limited = ("bash", "-c", f'ulimit -v {LIMIT_KIB}; exec "$0" "$@"', *engine.command)
    flags = (*CPU, "--mem-fraction-static", "1.5")
    outcome = _launched(engine.model_copy(update={"command": limited, "flags": flags}), tmp_path)

    assert isinstance(outcome, Rejected), outcome
    assert outcome.cause is Cause.KV_MEMORY
    assert outcome.directions == {"mem_fraction_static": "lower"}
    assert "ran out of memory while it set up its KV cache" in outcome.reason


@pytest.mark.skipif(
    unchunked_note(DEFAULT_MAX_PREFILL_TOKENS, 1, host_memory()) is None,
    reason="this machine has memory enough for unchunked prefills",
)
def test_chunking_off_asks_for_a_fraction(engine: EngineSpec, tmp_path: Path) -> None:
    """SGLang's own share falls below nothing, as `tuner check` notes; the least is named."""
    flags = (*CPU, "--chunked-prefill-size", "-1")
    outcome = _launched(engine.model_copy(update={"flags": flags}), tmp_path)

    assert isinstance(outcome, Rejected), outcome
    assert outcome.cause is Cause.KV_MEMORY
    assert outcome.directions == {"mem_fraction_static": "raise"}
    assert "leave no memory for the KV cache: raise mem_fraction_static above 0." in outcome.reason


def test_a_port_taken_while_the_engine_starts_is_the_machines_fault(
    engine: EngineSpec, tmp_path: Path
) -> None:
    """Who came after our look at the port is named, and goes on serving."""
    port = free_port()
    words = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    spec = _trial(engine.model_copy(update={"flags": BASE, "port": port}), tmp_path)
    others: list[subprocess.Popen[bytes]] = []

    def settle(said: str) -> None:
        if said == "engine starting":
            log = (tmp_path / "other.log").open("wb")
            others.append(subprocess.Popen(words, cwd=spec.folder, stdout=log, stderr=log))
            log.close()

    outcome = run_trial(spec, settle)
    (other,) = others
    try:
        assert isinstance(outcome, Faulted), outcome
        assert not outcome.lasting
        assert outcome.cause is Cause.PORT
        assert f"port {port} is held by another process (pid {other.pid}, " in outcome.reason
        assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 200
    finally:
        other.kill()
        other.wait()


def test_no_running_requests_are_one(engine: EngineSpec, tmp_path: Path) -> None:
    """SGLang silently runs one request at a time; the effective configuration says so."""
    flags = (*BASE, "--max-running-requests", "0")
    outcome = _launched(engine.model_copy(update={"flags": flags}), tmp_path)

    assert isinstance(outcome, Measured), outcome
    assert _effective(tmp_path)["effective"]["max_running_requests"] == 1
    assert outcome.effective["max_running_requests"] == 1


def test_more_running_requests_than_the_pool_bears_are_fewer(
    engine: EngineSpec, tmp_path: Path
) -> None:
    """SGLang clamps them to half the pool's tokens; the difference is written down."""
    asked = engine.model_copy(update={"flags": BASE})
    outcome = _launched(asked, tmp_path, {"max_running_requests": 99999})

    assert isinstance(outcome, Measured), outcome
    assert _effective(tmp_path)["changed"] == {
        "max_running_requests": {"requested": 99999, "effective": 10000}
    }


def test_a_pool_smaller_than_a_prompt_asks_for_more(engine: EngineSpec, tmp_path: Path) -> None:
    """The engine starts with a pool below the model's context, and refuses what is longer."""
    flags = (*CPU, "--max-total-tokens", "3000")
    outcome = _launched(engine.model_copy(update={"flags": flags}), tmp_path, input_tokens=3500)

    assert isinstance(outcome, Rejected), outcome
    assert outcome.cause is Cause.KV_MEMORY
    assert outcome.directions == {"mem_fraction_static": "raise"}
    assert "Input length (3500 tokens) exceeds the maximum allowed length" in outcome.reason


def _launched(
    engine: EngineSpec,
    folder: Path,
    candidate: dict[str, Value] | None = None,
    *,
    input_tokens: int = 64,
) -> Outcome:
    return run_trial(_trial(engine, folder, candidate, input_tokens=input_tokens))


def _trial(
    engine: EngineSpec,
    folder: Path,
    candidate: dict[str, Value] | None = None,
    *,
    input_tokens: int = 64,
) -> TrialSpec:
    load = LoadSpec(concurrency=8, rounds=3, warmup_rounds=1)
    workload = WorkloadSpec(kind="fixed", input_tokens=input_tokens, output_tokens=8, load=load)
    path = folder / "workload.jsonl"
    return TrialSpec(
        study_id=LAUNCHES,
        number=0,
        candidate=candidate or {},
        engine=engine,
        workload=workload,
        workload_path=path,
        workload_sha256=write_plan(path, plan(workload, vocabulary=2048)),
        folder=folder / "trial-0",
        environment_names=("PATH", "HOME", "LANG", "TMPDIR"),
    )


def _effective(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "trial-0" / "effective.json").read_bytes())
    return data


def _checked(folder: Path, python: Path, model: str, words: list[str]) -> tuple[int, str]:
    study = folder / "study.toml"
    fields = {"model": model, "python": str(python), "flags": [*BASE, *words]}
    study.write_text(STUDY.format(**{name: json.dumps(value) for name, value in fields.items()}))
    ran = CliRunner().invoke(main, ["check", str(study)])
    return ran.exit_code, ran.stderr.strip()
