"""Ctrl-C before anything runs, and readers that go away: no loss, no traceback."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tuner_process import (
    engines_of,
    events,
    kill_everything,
    start,
    wait_until,
    write_study,
)

MOMENTS: dict[str, Callable[[Path], bool]] = {
    "the study file is read": lambda folder: True,
    "the study begins": lambda folder: (folder / "studies" / "small" / "lock").exists(),
    "Ray starts": lambda folder: bool(events(folder, "opened")),
}
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
