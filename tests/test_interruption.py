"""Ctrl-C, SIGKILL of each of our processes, readers that go away: no loss, no traceback."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runners import listener, process_table
from tests.tuner_process import (
    abandoned_memory,
    assert_nothing_held,
    assert_nothing_left,
    engines_of,
    events,
    kill_everything,
    phase,
    ray_of,
    settings_ended,
    shared_memory,
    start,
    tuner,
    wait_until,
    write_faulty_study,
    write_study,
)

GONE_S = 20.0  # the engine's grace of 1 s, and what a busy machine takes to notice a death

MOMENTS: dict[str, Callable[[Path], bool]] = {
    "the study file is read": lambda folder: True,
    "the study begins": lambda folder: (folder / "studies" / "small" / "lock").exists(),
    "Ray starts": lambda folder: bool(events(folder, "opened")),
}
WHILE_IT_RUNS = {"starts": "engine starting", "is under load": "measuring"}
CHATTY = """
import sys
from tuner.progress import PlainLines
sys.stdin.readline()
lines = PlainLines(emulated=False)
for number in range(3):
    lines.say(f"line {number}")
sys.exit(3)
"""


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_while_it_starts_is_an_interruption(tmp_path: Path, moment: str) -> None:
    """Exit code 130 and no traceback, however early; nothing is left running."""
    write_study(tmp_path)
    process = start(tmp_path, "tune", "study.toml")
    try:
        wait_until(lambda: MOMENTS[moment](tmp_path), what=moment)
        wait_until(lambda: _imports_are_done(process.pid), what="our code runs")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        if process.poll() is None:
            kill_everything(process)
    said = (tmp_path / "tuner.err").read_text()
    assert "Traceback" not in said
    assert "Aborted" not in said
    if events(tmp_path, "opened"):
        assert engines_of(tmp_path) == []


def _imports_are_done(pid: int) -> bool:
    return "pydantic_core" in Path("/proc", str(pid), "maps").read_text()


def test_progress_that_nobody_reads_stops_nothing() -> None:
    """`tuner tune ... 2>&1 | head -1`: the study goes on, and ends with its own exit code."""
    with subprocess.Popen(
        [sys.executable, "-c", CHATTY], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stderr.close()
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.wait(timeout=30) == 3


# --- SIGKILL ------------------------------------------------------------------------------------


def begin(folder: Path, moment: str) -> tuple["subprocess.Popen[bytes]", int, set[str]]:
    """Start a study whose engine starts slowly, is deaf, and holds shared memory; wait for it."""
    port, before = listener.free_port(), shared_memory()
    faults = ("leave_shared_memory", "listen_late:after=2", "ignore_sigterm")
    write_faulty_study(folder, *faults, port=port, speed=2.0, rounds=20)
    process = start(folder, "tune", "study.toml")
    wait_until(
        lambda: (
            phase(folder, 0).startswith(WHILE_IT_RUNS[moment])
            and bool(shared_memory() - before)  # its guardian looks every second
        ),
        what=f"the engine {moment}",
    )
    return process, port, before


def ray_process(folder: Path, name: str) -> int:
    """Return the one process of our Ray that is called *name*, as far as `ps` shows it."""
    (pid,) = [p for p in ray_of(folder) if process_table.name(p).startswith(name)]
    return pid


@pytest.mark.slow
@pytest.mark.parametrize("moment", WHILE_IT_RUNS)
def test_a_killed_driver_takes_everything_along_and_the_study_goes_on(
    tmp_path: Path, moment: str
) -> None:
    """Engine, port and Ray go by themselves; the same command then ends the study."""
    process, port, before = begin(tmp_path, moment)
    kill_everything(process)
    wait_until(lambda: not engines_of(tmp_path), what="the engine is gone", limit_s=GONE_S)
    wait_until(lambda: not ray_of(tmp_path), what="Ray is gone", limit_s=60)
    assert listener.holder(port) is None
    assert abandoned_memory() <= before

    ran = tuner(tmp_path, "tune", "study.toml")
    assert ran.code == 0, ran.err
    assert len(events(tmp_path, "lost")) == 1
    assert_nothing_left(tmp_path, port=port, shared_before=before)


@pytest.mark.slow
def test_the_same_command_at_once_after_a_kill_lets_the_guardian_finish(tmp_path: Path) -> None:
    """What the guardian clears up, shared memory, is cleared up although we do not wait."""
    process, port, before = begin(tmp_path, "is under load")
    kill_everything(process)

    ran = tuner(tmp_path, "tune", "study.toml")
    assert ran.code == 0, ran.err
    assert {e["outcome"]["state"] for e in events(tmp_path, "finished")} <= {"measured", "invalid"}
    assert_nothing_left(tmp_path, port=port, shared_before=before)


@pytest.mark.slow
@pytest.mark.parametrize("moment", WHILE_IT_RUNS)
def test_a_killed_worker_is_a_fault_and_the_launch_is_tried_again(
    tmp_path: Path, moment: str
) -> None:
    """The next launch waits for the old engine: on a fixed port there is no second fault."""
    process, port, before = begin(tmp_path, moment)
    os.kill(ray_process(tmp_path, "ray::ImplicitF"), signal.SIGKILL)

    assert process.wait(timeout=180) == 0
    states = [e["outcome"]["state"] for e in events(tmp_path, "finished")]
    assert states[0] == "faulted"
    assert "faulted" not in states[1:]
    (reason,) = [
        e["outcome"]["reason"]
        for e in events(tmp_path, "finished")
        if e["outcome"]["state"] == "faulted"
    ]
    assert reason == "the Ray worker died while it ran the launch"
    assert settings_ended(tmp_path)[0] == settings_ended(tmp_path)[1]
    assert "Traceback" not in (tmp_path / "tuner.err").read_text()
    assert_nothing_left(tmp_path, port=port, shared_before=before)


@pytest.mark.slow
@pytest.mark.parametrize("moment", WHILE_IT_RUNS)
def test_a_dead_raylet_ends_the_study_with_code_4_and_it_goes_on(
    tmp_path: Path, moment: str
) -> None:
    """One sentence, never a hang, nothing left; the same command ends the study."""
    process, port, before = begin(tmp_path, moment)
    os.kill(ray_process(tmp_path, "raylet"), signal.SIGKILL)

    assert process.wait(timeout=90) == 4
    assert "Traceback" not in (tmp_path / "tuner.err").read_text()
    wait_until(lambda: not engines_of(tmp_path), what="the engine is gone", limit_s=GONE_S)
    assert_nothing_left(tmp_path, port=port, shared_before=before)
    assert "a process of the Ray" in events(tmp_path, "closed")[-1]["reason"]

    ran = tuner(tmp_path, "tune", "study.toml")
    assert ran.code == 0, ran.err
    assert_nothing_left(tmp_path, port=port, shared_before=before)


@pytest.mark.slow
def test_a_ray_that_never_answers_again_ends_the_study_with_code_4(tmp_path: Path) -> None:
    """Without its gcs_server Ray keeps our main thread: the tuner ends all the same, in words.

    Nobody is left to write the study's end; the next run does what is missing.
    """
    process, port, before = begin(tmp_path, "starts")
    os.kill(ray_process(tmp_path, "gcs_server"), signal.SIGKILL)

    assert process.wait(timeout=90) == 4
    said = (tmp_path / "tuner.err").read_text()
    assert "Traceback" not in said
    assert "died; the same command goes on" in said.splitlines()[-1]
    wait_until(lambda: not engines_of(tmp_path), what="the engine is gone", limit_s=GONE_S)
    wait_until(lambda: not ray_of(tmp_path), what="Ray is gone", limit_s=GONE_S)
    assert_nothing_held(tmp_path, port=port, shared_before=before)

    ran = tuner(tmp_path, "tune", "study.toml")
    assert ran.code == 0, ran.err
    assert len(events(tmp_path, "lost")) == 1
    assert_nothing_left(tmp_path, port=port, shared_before=before)
