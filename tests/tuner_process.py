"""Runs `tuner` as users do, in a process of its own, and looks for what it leaves behind."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners import listener, process_table
from tuner.our_ray import MARK as RAY_MARK

TUNER = [sys.executable, "-c", "from tuner.cli import main; main()"]
MARK = "TUNER_STUDY="

STUDY = """
[study]
name = "small"
[engine]
kind = "emulated"
model = "Llama-3.1-8B"
hardware = "A100-80G"
speed = 8.0
[workload]
kind = "fixed"
input_tokens = 256
output_tokens = {output_tokens}
[workload.load]
concurrency = 16
rounds = {rounds}
[objective.limits]
ttft_p95_ms = {ttft}
[search]
launches = 7
[search.knobs]
schedule_policy = ["fcfs", "lpm"]
max_running_requests = {{ low = 2, high = 32, log = true }}
token_budget = {{ low = 256, high = 4096, step = 256 }}
"""

FAULTY_STUDY = """
[study]
name = "small"
[engine]
kind = "emulated"
model = "Llama-3.1-8B"
hardware = "A100-80G"
speed = {speed}
port = {port}
startup_timeout_s = {startup_timeout_s}
stop_grace_s = {stop_grace_s}
flags = {flags}
[workload]
kind = "fixed"
input_tokens = 32
output_tokens = {output_tokens}
vocabulary = 2000
[workload.load]
concurrency = 4
rounds = {rounds}
first_token_timeout_s = 5
stall_timeout_s = 0.5
total_timeout_s = 20
[objective.limits]
ttft_p95_ms = 60000
[search]
launches = {launches}
[search.knobs]
max_running_requests = {{ low = 2, high = 64 }}
[tracking]
enabled = {tracking}
"""


@dataclass(frozen=True)
class Ran:
    """How a run of the command line ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def write_study(
    folder: Path, *, ttft: float = 5000, output_tokens: int = 32, rounds: int = 3
) -> Path:
    path = folder / "study.toml"
    path.write_text(STUDY.format(ttft=ttft, output_tokens=output_tokens, rounds=rounds))
    return path


def write_faulty_study(
    folder: Path,
    *faults: str,
    port: int,
    launches: int = 2,
    speed: float = 5.0,
    output_tokens: int = 24,
    rounds: int = 8,
    startup_timeout_s: float = 30.0,
    stop_grace_s: float = 1.0,
    tracking: bool = False,
) -> Path:
    """Write a study whose engine goes wrong in every launch, on a fixed port."""
    path = folder / "study.toml"
    text = FAULTY_STUDY.format(
        flags=json.dumps([word for one in faults for word in ("--emulated-fault", one)]),
        port=port,
        launches=launches,
        speed=speed,
        output_tokens=output_tokens,
        rounds=rounds,
        startup_timeout_s=startup_timeout_s,
        stop_grace_s=stop_grace_s,
        tracking=str(tracking).lower(),
    )
    path.write_text(text)
    return path


def tuner(folder: Path, *words: str, timeout_s: float = 300) -> Ran:
    """Run to the end; nothing of ours may be left running."""
    ran = subprocess.run(
        [*TUNER, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start in a session of its own, as a shell would."""
    with (folder / "tuner.err").open("wb") as err:
        return subprocess.Popen(
            [*TUNER, *words],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=err,
            start_new_session=True,
        )


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    """Return the journal's lines of one kind."""
    path = folder / "studies" / "small" / "journal.jsonl"
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [e for e in map(json.loads, lines) if e["event"] == event]


def phase(folder: Path, number: int) -> str:
    """Return what a running launch says it does."""
    path = folder / "studies" / "small" / "launches" / f"{number:03d}" / "phase"
    return path.read_text() if path.exists() else ""


def until(holds: Callable[[], bool], limit_s: float = 15.0) -> bool:
    """Wait for something to become true; return whether it did in time."""
    end = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def wait_until(holds: Callable[[], bool], *, what: str, limit_s: float = 90) -> None:
    """Wait for something that must become true."""
    assert until(holds, limit_s), f"still not so after {limit_s} s: {what}"


def engines_of(folder: Path) -> list[int]:
    """Return the processes that carry the mark of the study in *folder*."""
    (opened,) = events(folder, "opened")
    mark = (MARK + opened["study_id"]).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in variables:
                found.append(int(entry.name))
    return found


def ray_of(folder: Path) -> list[int]:
    """Return the processes of the Ray that ran the study in *folder*."""
    return process_table.marked(RAY_MARK, str((folder / "studies" / "small").resolve()))


def shared_memory() -> set[str]:
    """Return what emulated engines have, or left, in shared memory."""
    return {file.name for file in Path("/dev/shm").glob("sglang_loads_emulated_*")}  # noqa: S108


def abandoned_memory() -> set[str]:
    """Return what emulated engines that have ended left in shared memory."""
    return {name for name in shared_memory() if not process_table.alive(_pid_in(name))}


def _pid_in(name: str) -> int:
    return int(name.rpartition("_")[2].partition(".")[0])


def assert_nothing_left(folder: Path, *, port: int, shared_before: set[str]) -> None:
    """Look for all that runs or is held, and for files of a running study."""
    assert_nothing_held(folder, port=port, shared_before=shared_before)
    root = folder / "studies" / "small"
    assert not (root / "stop-requested").exists()
    assert not (root / ".ray").exists()
    assert list(root.glob("launches/*/phase")) == []


def assert_nothing_held(folder: Path, *, port: int, shared_before: set[str]) -> None:
    """Look for processes, a listener, shared memory and a held lock."""
    assert engines_of(folder) == []
    assert ray_of(folder) == []
    assert listener.holder(port) is None
    assert abandoned_memory() <= shared_before
    with (folder / "studies" / "small" / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def kill_everything(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL the tuner; Ray, its workers and the engine must follow by themselves."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def settings_ended(folder: Path, *, only: str | None = None) -> list[str]:
    """Return the setting of each launch that ended (as *only*), by its fingerprint.

    On a busy machine the emulated engine falls behind its clock, and a launch is measured again.
    """
    settings = {e["number"]: str(e["fingerprint"]) for e in events(folder, "launched")}
    ended = events(folder, "finished")
    return [settings[e["number"]] for e in ended if only in {None, e["outcome"]["state"]}]
