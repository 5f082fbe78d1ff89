"""The main job through the command line, on the emulated engine."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tuner_process import (
    Ran,
    engines_of,
    events,
    kill_everything,
    phase,
    settings_ended,
    start,
    tuner,
    wait_until,
    write_study,
)

pytestmark = pytest.mark.slow

# The budget, or one less where the other policy was measured already at the best setting.
ALL = {6, 7}

MOMENTS: dict[str, Callable[[Path], bool]] = {
    "while an engine starts": lambda f: phase(f, 2).startswith("engine starting"),
    "under load": lambda f: phase(f, 2).startswith("measuring"),
    "between two launches": lambda f: len(events(f, "finished")) == 3,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """Run a study to its end once; return its working directory and how it ended."""
    folder = tmp_path_factory.mktemp("finished")
    write_study(folder)
    return folder, tuner(folder, "tune", "study.toml", "--json")


def test_a_study_file_becomes_a_winner_a_report_and_mlflow_runs(
    finished: tuple[Path, Ran],
) -> None:
    """One command: the winner keeps the limits, its command is there, everything is in MLflow."""
    folder, ran = finished

    assert ran.code == 0, ran.err
    answer = ran.json()
    assert answer["verdict"] == "found"
    assert answer["notes"] == []
    assert all("keeps" in limit for limit in answer["winner"]["limits"])
    assert "runners.emulated" in answer["winner"]["command"]
    root = folder / "studies" / "small"
    assert "emulated" in (root / "report.html").read_text().lower()
    assert json.loads((root / "report.json").read_text())["verdict"] == "found"
    assert "emulated" in ran.err
    assert engines_of(folder) == []
    assert not (root / ".ray").exists()
    assert len(set(settings_ended(folder))) in ALL
    assert runs_in_mlflow(folder) == (1, len(events(folder, "launched")))


def test_every_launch_is_sent_the_same_requests(finished: tuple[Path, Ran]) -> None:
    """A comparison of settings is one only if the work was the same."""
    folder, _ = finished
    launches = sorted((folder / "studies" / "small" / "launches").iterdir())
    asked = set()
    for launch in launches:
        rows = map(json.loads, (launch / "requests.jsonl").read_text().splitlines())
        measured = [r for r in rows if r["phase"] == "measured"]
        asked.add(tuple(sorted((r["slot"], r["round"], r["id"]) for r in measured)))
    assert len(launches) == len(events(folder, "launched"))
    assert len(asked) == 1


def test_a_finished_study_launches_nothing_more(finished: tuple[Path, Ran]) -> None:
    """Run again, a finished study gives its answer without starting an engine."""
    folder, first = finished
    before = len(events(folder, "launched"))
    again = tuner(folder, "tune", "study.toml", "--json")

    assert again.code == 0
    assert again.json()["winner"] == first.json()["winner"]
    assert len(events(folder, "launched")) == before


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_it_goes_on(tmp_path: Path, moment: str) -> None:
    """SIGKILL, then the same command: no engine left, nothing measured twice, the budget kept."""
    write_study(tmp_path, output_tokens=64, rounds=6)
    process = start(tmp_path, "tune", "study.toml")
    wait_until(lambda: MOMENTS[moment](tmp_path), what=moment)
    kill_everything(process)
    wait_until(lambda: not engines_of(tmp_path), what="every engine is gone", limit_s=20)
    before = len(events(tmp_path, "finished"))

    ran = tuner(tmp_path, "tune", "study.toml", "--json")

    assert ran.code == 0, ran.err
    lost, measured = events(tmp_path, "lost"), settings_ended(tmp_path, only="measured")
    assert before >= 2
    assert len(lost) <= 1
    assert len(measured) == len(set(measured))
    assert len(set(settings_ended(tmp_path))) in ALL
    assert engines_of(tmp_path) == []
    assert runs_in_mlflow(tmp_path) == (1, len(events(tmp_path, "launched")))


def test_ctrl_c_stops_cleanly_and_is_no_loss(tmp_path: Path) -> None:
    """Ctrl-C once: exit code 130, no engine left; the same command goes on."""
    write_study(tmp_path, output_tokens=64, rounds=6)
    process = start(tmp_path, "tune", "study.toml")
    wait_until(lambda: phase(tmp_path, 1).startswith("measuring"), what="launch 1 measures")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: Ray's processes get it too

    assert process.wait(timeout=60) == 130
    assert engines_of(tmp_path) == []
    assert len(events(tmp_path, "dropped")) == 1
    assert tuner(tmp_path, "tune", "study.toml", "--quiet").code == 0
    assert len(set(settings_ended(tmp_path))) in ALL


def test_impossible_limits_end_with_code_3_and_the_reason(tmp_path: Path) -> None:
    """Nothing keeps the limits: exit code 3, nobody is crowned, the binding limit is named."""
    write_study(tmp_path, ttft=0.01)
    ran = tuner(tmp_path, "tune", "study.toml", "--json")

    assert ran.code == 3, ran.err
    answer = ran.json()
    assert answer["winner"] is None
    assert any(
        "ttft_p95_ms" in limit and "breaks" in limit for limit in answer["nearest"]["limits"]
    )
    report = (tmp_path / "studies" / "small" / "report.md").read_text()
    assert "ttft_p95_ms" in report


def test_two_tuners_never_work_on_one_study(tmp_path: Path) -> None:
    """The second one is told who works there, and touches nothing."""
    write_study(tmp_path)
    process = start(tmp_path, "tune", "study.toml")
    wait_until(lambda: bool(events(tmp_path, "launched")), what="the first one launches")

    second = tuner(tmp_path, "tune", "study.toml")
    assert second.code == 2
    assert f"process {process.pid} works in" in second.err
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 130


def test_a_changed_study_is_refused_with_what_changed(tmp_path: Path) -> None:
    """Trials of other requests or limits do not mix: the change is named, nothing starts."""
    study = write_study(tmp_path)
    process = start(tmp_path, "tune", "study.toml")
    wait_until(lambda: bool(events(tmp_path, "launched")), what="it launches")
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    study.write_text(study.read_text().replace("rounds = 3", "rounds = 4"))

    ran = tuner(tmp_path, "tune", "study.toml")
    assert ran.code == 2
    assert "workload.load.rounds changed from 3 to 4" in ran.err


def runs_in_mlflow(folder: Path) -> tuple[int, int]:
    """Return how many parents and children the store holds."""
    with sqlite3.connect(folder / "mlruns" / "mlflow.db") as store:
        (children,) = store.execute(
            "select count(*) from tags where key = 'mlflow.parentRunId'"
        ).fetchone()
        (runs,) = store.execute("select count(*) from runs").fetchone()
    return runs - children, children


def test_help_costs_little_and_imports_nothing_heavy() -> None:
    """`tuner --help` answers at once: no ray, mlflow, optuna or pandas is imported for it."""
    code = (
        "import sys, time\n"
        "from tuner.cli import main\n"
        "sys.argv = ['tuner', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'ray', 'mlflow', 'optuna', 'pandas', 'torch'} & set(sys.modules)\n"
        "print(heavy, time.process_time(), file=sys.stderr)\n"
        "sys.exit(bool(heavy) or time.process_time() > 0.5)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
