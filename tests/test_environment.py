"""The snapshot of what a study ran on."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runners import environment
from runners.redaction import REDACTED

GPU = {
    "index": 0,
    "uuid": "GPU-1",
    "name": "Made-up 80GB",
    "driver": "570.10",
    "cuda_driver": "12.8",
    "memory_total_mib": 81920,
    "memory_used_mib": 3,
    "power_limit_w": 700.0,
    "temperature_c": 33,
}
TAKEN: dict[str, Any] = {
    "taken_at": "2026-11-30T10:00:00+00:00",
    "tuner": {"version": "0.1.0", "commit": None, "python": "3.11", "packages": ["click==8.1"]},
    "engine": {"python": "3.12", "packages": ["sglang==0.5.22", "torch==2.9"], "reason": None},
    "machine": {"kernel": "6.1", "cpu": "Made-up", "cpus": 8},
    "container": [],
    "gpus": [GPU],
    "variables": {"OMP_NUM_THREADS": "4"},
}


def changed(path: str, value: object) -> dict[str, Any]:
    """Return the snapshot above with one thing in it set otherwise."""
    taken = copy.deepcopy(TAKEN)
    *way, last = path.split(".")
    inner: Any = taken
    for key in way:
        inner = inner[int(key) if key.isdigit() else key]
    inner[last] = value
    return taken


def test_a_snapshot_is_plain_data_that_names_the_tuner_and_its_packages() -> None:
    """What is taken can be written as JSON, and lists what this interpreter sees."""
    taken = environment.snapshot(None, repository=None, variables={})
    assert json.loads(json.dumps(taken)) == taken
    assert any(line.lower().startswith("pytest") for line in taken["tuner"]["packages"])
    assert taken["engine"] is None
    assert taken["machine"]["cpus"] >= 1
    assert taken["machine"]["memory_gib"] > 0


def test_an_engine_that_is_not_python_gets_a_reason_instead_of_packages() -> None:
    """Nothing is guessed about a command that is not a Python interpreter."""
    seen = environment.packages(["/bin/true"])
    assert seen["packages"] is None
    assert seen["reason"] == "'/bin/true' is not a Python interpreter"
    assert environment.packages(["python-that-is-nowhere"])["packages"] is None


def test_a_script_is_looked_through_to_its_interpreter(tmp_path: Path) -> None:
    """An engine started by a console script is asked about its packages as well."""
    script = tmp_path / "engine"
    script.write_text(f"#!{sys.executable}\nprint('served')\n", encoding="utf-8")
    script.chmod(0o755)
    assert environment.interpreter_of([str(script), "serve"]) == [sys.executable]


def test_an_interpreter_without_pip_still_lists_its_packages(tmp_path: Path) -> None:
    """When pip is missing the interpreter's own metadata is read."""
    fake = tmp_path / "python-without-pip"
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = -m ] && exit 1\nexec {sys.executable} "$@"\n', encoding="utf-8"
    )
    fake.chmod(0o755)
    listed = environment.packages([str(fake)])["packages"]
    assert any(line.startswith("pytest==") for line in listed)


def test_secrets_are_hidden_and_other_variables_left_out() -> None:
    """A name that smells of a secret keeps its name and loses its value."""
    seen = environment.selected_variables(
        {"SGLANG_API_KEY": "hush", "NCCL_DEBUG": "INFO", "HOME": "/root", "OMP_NUM_THREADS": "2"}
    )
    assert seen == {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "2",
        "SGLANG_API_KEY": REDACTED,
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("taken_at", "2027-01-01T00:00:00+00:00"),
        ("gpus.0.temperature_c", 71),
        ("gpus.0.memory_used_mib", 70000),
    ],
)
def test_what_comes_and_goes_is_not_in_the_fingerprint(path: str, value: object) -> None:
    """Time, heat and used memory do not make another environment."""
    later = changed(path, value)
    assert environment.fingerprint(later) == environment.fingerprint(TAKEN)
    assert environment.differences(TAKEN, later) == []


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (
            "engine.packages",
            ["sglang==0.5.23", "torch==2.9"],
            "engine package sglang: 0.5.22 -> 0.5.23",
        ),
        ("gpus.0.driver", "580.1", "GPU 0 driver: 570.10 -> 580.1"),
        ("gpus.0.power_limit_w", 350.0, "GPU 0 power_limit_w: 700.0 -> 350.0"),
        ("variables", {}, "variable OMP_NUM_THREADS: 4 -> (none)"),
        ("machine.kernel", "6.2", "machine kernel: 6.1 -> 6.2"),
    ],
)
def test_what_moves_performance_is_named(path: str, value: object, sentence: str) -> None:
    """An upgrade changes the fingerprint, and the difference is said in words."""
    after = changed(path, value)
    assert environment.fingerprint(after) != environment.fingerprint(TAKEN)
    assert environment.differences(TAKEN, after) == [sentence]


def test_the_text_names_every_fact_once() -> None:
    """The text for people holds the versions, the GPU and an explicit word for what is absent."""
    text = environment.as_text(TAKEN)
    assert "tuner.version: 0.1.0\n" in text
    assert "    sglang==0.5.22\n" in text
    assert "gpus[0].name: Made-up 80GB\n" in text
    assert "tuner.commit: (none)\n" in text


def test_the_commit_is_marked_when_files_differ_from_it(tmp_path: Path) -> None:
    """A changed checkout is not passed off as its commit, and no checkout has none."""
    assert environment.commit(tmp_path) is None

    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    (tmp_path / "file").write_text("one", encoding="utf-8")
    git("init", "-q")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    clean = environment.commit(tmp_path)
    (tmp_path / "file").write_text("two", encoding="utf-8")
    assert clean is not None
    assert environment.commit(tmp_path) == f"{clean} (with local changes)"
