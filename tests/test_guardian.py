"""The guardian by itself, started as the launcher starts it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from runners import guardian, process_table
from tests.tuner_process import until

# A grandchild that leaves the session, is orphaned, and does not listen to SIGTERM.
DEAF_ORPHAN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    print("orphan", os.getpid(), flush=True)
while True: time.sleep(1)
"""
SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(600)"
# What a worker does: start the guardian, pass its first line on, and live on.
CALLER = """
import os, subprocess, sys, time
path, log, *command = sys.argv[1:]
words = [sys.executable, "-I", "-S", path, str(os.getpid()), "1", log, *command]
process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(process.stdout.readline().decode(), end="", flush=True)
time.sleep(600)
"""


def _python(script: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", script]


def _gone(*pids: int) -> bool:
    return not any(process_table.alive(pid) for pid in pids)


def _line(stream: IO[bytes] | None) -> dict[str, Any]:
    assert stream is not None
    data: dict[str, Any] = json.loads(stream.readline())
    return data


@contextmanager
def _guarded(
    command: list[str], log: Path, grace_s: float = 1
) -> Iterator["subprocess.Popen[bytes]"]:
    words = [guardian.__file__, str(os.getpid()), str(grace_s), str(log), *command]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process


def _said_in(log: Path, word: str) -> bool:
    return log.exists() and word in log.read_text()


def test_ends_a_deaf_orphan_and_closes_its_pipe_only_then(tmp_path: Path) -> None:
    """An orphan in a session of its own that ignores SIGTERM is gone when the pipe ends."""
    log = tmp_path / "log"
    with _guarded(_python(DEAF_ORPHAN), log, grace_s=0.2) as process:
        first = _line(process.stdout)
        assert until(lambda: _said_in(log, "orphan"))
        orphan = int(log.read_text().split()[1])
        assert not _gone(orphan)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert json.loads(process.stdout.readline()) == {"exit": -signal.SIGKILL}
        assert process.stdout.read() == b""
        assert _gone(orphan, first["child"])


def test_says_at_once_how_the_engine_ended(tmp_path: Path) -> None:
    """The exit code comes by itself, without anybody asking to stop."""
    with _guarded(_python("raise SystemExit(7)"), tmp_path / "log") as process:
        _line(process.stdout)
        assert _line(process.stdout) == {"exit": 7}


def test_says_why_a_command_cannot_be_started(tmp_path: Path) -> None:
    """A command that does not exist is an error in words, not a dead pipe."""
    with _guarded(["/nowhere/python"], tmp_path / "log") as process:
        assert "/nowhere/python" in _line(process.stdout)["error"]


def test_the_engine_does_not_hold_the_guardians_pipes(tmp_path: Path) -> None:
    """The engine has nothing of its caller's open but its log: the ends of pipes are ours."""
    with _guarded(_python(SLEEPER), tmp_path / "log") as process:
        child = _line(process.stdout)["child"]
        assert until(lambda: _said_in(tmp_path / "log", "up"))
        files = set(process_table.open_files(child))
        assert files == {os.devnull, str(tmp_path / "log")}


@pytest.mark.parametrize("victim", ["caller", "guardian"])
def test_a_sigkill_of_either_takes_the_engine_along(tmp_path: Path, victim: str) -> None:
    """Neither kill -9 of the worker nor of the guardian leaves an engine behind."""
    words = [guardian.__file__, str(tmp_path / "log"), *_python(SLEEPER)]
    with subprocess.Popen([*_python(CALLER), *words], stdout=subprocess.PIPE) as caller:
        first = _line(caller.stdout)
        os.kill(caller.pid if victim == "caller" else first["guardian"], signal.SIGKILL)
        assert until(lambda: _gone(first["child"], first["guardian"]))
        caller.kill()


def test_sigterm_to_the_guardian_stops_the_engine(tmp_path: Path) -> None:
    """An operator who ends the guardian politely ends the engine."""
    with _guarded(_python(SLEEPER), tmp_path / "log") as process:
        first = _line(process.stdout)
        os.kill(first["guardian"], signal.SIGTERM)
        assert _line(process.stdout) == {"exit": -signal.SIGTERM}
        assert until(lambda: _gone(first["guardian"]))


def test_removes_the_shared_memory_of_a_killed_engine(tmp_path: Path) -> None:
    """SGLang leaves a file when it is killed; only what our engine holds open is removed."""
    ours, other = (Path(f"/dev/shm/sglang_loads_{who}_{os.getpid()}.shm") for who in "ab")  # noqa: S108
    other.touch()
    script = f"f = open({str(ours)!r}, 'w')\n{SLEEPER}"
    try:
        with _guarded(_python(script), tmp_path / "log", grace_s=0) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert until(lambda: _said_in(tmp_path / "log", "up"))
            process.stdin.close()
            process.stdout.read()
        assert not ours.exists()
        assert other.exists()
    finally:
        other.unlink()
