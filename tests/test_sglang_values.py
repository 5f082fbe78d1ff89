"""Bad and odd values of real SGLang flags, each refused before an engine starts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

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
BASE = ("--device", "cpu", "--load-format", "dummy", "--max-total-tokens", "20000")
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


def _checked(folder: Path, python: Path, model: str, words: list[str]) -> tuple[int, str]:
    study = folder / "study.toml"
    fields = {"model": model, "python": str(python), "flags": [*BASE, *words]}
    study.write_text(STUDY.format(**{name: json.dumps(value) for name, value in fields.items()}))
    ran = CliRunner().invoke(main, ["check", str(study)])
    return ran.exit_code, ran.stderr.strip()
