"""Engines as processes: started with nothing but what is theirs, and proven gone."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from runners import janitor, listener, process_table, sglang
from runners.engine_process import launch
from runners.errors import MachineFaultError
from runners.spec import EngineSpec
from search_spaces import Candidate
from tests.tuner_process import until

SHOW = "import os\nprint(sorted(os.environ), flush=True)\nimport time\ntime.sleep(600)"
ORPHAN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
print("orphan", os.getpid(), flush=True)
while True: time.sleep(1)
"""


def _python(script: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", script]


def test_leaves_nothing_running_when_the_block_fails(tmp_path: Path) -> None:
    """An exception inside the block still ends every process, and passes through."""
    pids: list[int] = []

    def use() -> None:
        with launch(
            _python(SHOW), env={}, log_path=tmp_path / "log", grace_s=1, study_id="s"
        ) as engine:
            pids.extend(engine.pids())
            raise LookupError

    with pytest.raises(LookupError):
        use()
    assert pids
    assert not any(process_table.alive(pid) for pid in pids)


def test_an_orphan_outlives_its_parent_but_not_the_launch(tmp_path: Path) -> None:
    """The end of the main process is seen; a deaf orphan in its own session still goes."""
    log = tmp_path / "log"
    with launch(_python(ORPHAN), env={}, log_path=log, grace_s=0.2, study_id="s") as engine:
        assert until(lambda: engine.exit_code() == 0)
        assert until(lambda: "orphan" in engine.log_tail())
        orphan = int(engine.log_tail().split()[1])
    assert not process_table.alive(orphan)


def test_an_engine_that_ends_at_once_is_seen_to_end(tmp_path: Path) -> None:
    """However soon the engine ends, its exit code comes through."""
    for number in range(8):
        log = tmp_path / str(number)
        with launch(["false"], env={}, log_path=log, grace_s=1, study_id="s") as engine:
            assert until(lambda: engine.exit_code() == 1, limit_s=5)


def test_a_killed_guardian_counts_as_a_killed_engine(tmp_path: Path) -> None:
    """Whoever shoots the guardian shoots the engine, and we notice."""
    with launch(
        _python(SHOW), env={}, log_path=tmp_path / "log", grace_s=1, study_id="s"
    ) as engine:
        assert engine.exit_code() is None
        guardian = process_table.parent(engine.pid)
        assert guardian is not None
        os.kill(guardian, signal.SIGKILL)
        assert until(lambda: engine.exit_code() == -signal.SIGKILL)
        assert until(lambda: not process_table.alive(engine.pid))


def test_a_command_that_cannot_run_is_a_lasting_fault(tmp_path: Path) -> None:
    """No candidate is to blame for a missing program, and no retry will find it."""
    with (
        pytest.raises(MachineFaultError, match="/nowhere/python") as caught,
        launch(["/nowhere/python"], env={}, log_path=tmp_path / "log", grace_s=1, study_id="s"),
    ):
        pass
    assert caught.value.lasting


def test_the_engine_sees_only_the_environment_it_was_given(tmp_path: Path) -> None:
    """A worker's variables stay the worker's; the engine's own win over the inherited ones."""
    engine = EngineSpec(kind="sglang", model="m", env={"HF_HUB_OFFLINE": "1", "PATH": "/own"})
    outer = {"PATH": "/bin", "HOME": "/h", "RAY_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "3"}
    env = sglang.environment(engine, ("PATH", "HOME", "NOT_SET"), outer)
    assert env["PATH"] == "/own"
    assert env["CUDA_VISIBLE_DEVICES"] == "3"
    assert set(env) == {
        *("PATH", "HOME", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES"),
        *("DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY"),
    }
    with launch(
        _python(SHOW), env=env, log_path=tmp_path / "log", grace_s=1, study_id="s"
    ) as process:
        assert until(lambda: "]" in process.log_tail())
        seen = set(eval(process.log_tail()))  # noqa: S307  # our own script's list
    assert seen - set(env) - {"LC_CTYPE"} == {"SPT_NOENV", "TUNER_STUDY", "TUNER_LAUNCH"}


def test_the_janitor_takes_what_carries_the_mark_and_spares_itself() -> None:
    """A dead driver's engine goes by its study's mark; other studies and we ourselves stay."""
    mark = {janitor.STUDY_MARK: f"swept-{os.getpid()}"}
    other = {janitor.STUDY_MARK: f"other-{os.getpid()}"}
    script = (
        f"import os\nfrom runners import janitor\n"
        f"print(sorted(janitor.sweep({mark[janitor.STUDY_MARK]!r})))"
    )
    with (
        subprocess.Popen(_python("import time; time.sleep(600)"), env=mark) as left_behind,
        subprocess.Popen(_python("import time; time.sleep(600)"), env=other) as not_ours,
    ):
        # The sweeping process carries the mark as well, as a driver started from one might.
        swept = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, **mark},
            capture_output=True,
            text=True,
            check=True,
        )
        assert swept.stdout.strip() == f"[{left_behind.pid}]"
        assert left_behind.wait() == -signal.SIGKILL
        assert not_ours.poll() is None
        not_ours.kill()


def test_a_name_that_is_no_text_hides_no_process() -> None:
    """A process may call itself anything, in any bytes; the table is read all the same."""
    script = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"\\xff) S 1 (", 0, 0, 0)
print("named", flush=True)
time.sleep(600)
"""
    with subprocess.Popen(_python(script), stdout=subprocess.PIPE) as odd:
        try:
            assert odd.stdout is not None
            assert odd.stdout.readline() == b"named\n"
            assert process_table.parent(odd.pid) == os.getpid()
            assert odd.pid in process_table.descendants(os.getpid())
            assert process_table.name(odd.pid).endswith(") S 1 (")
        finally:
            odd.kill()


def test_a_port_in_use_names_its_holder() -> None:
    """The message says who holds the port, so that the user can decide; nobody is killed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(MachineFaultError, match=rf"port {port} .*pid {os.getpid()}"):
            listener.assert_free(port)
        listener.assert_ours(port, [os.getpid()])
        with pytest.raises(MachineFaultError, match="another process"):
            listener.assert_ours(port, [1])
    listener.assert_free(port)


def test_a_free_port_is_free() -> None:
    """Nobody listens on the port that is given out, and it can be bound."""
    port = listener.free_port()
    assert listener.holder(port) is None
    socket.create_server(("127.0.0.1", port)).close()


def test_the_command_line_puts_knobs_after_fixed_flags() -> None:
    """SGLang takes the last of two equal flags: a knob wins over a fixed flag."""
    engine = EngineSpec(
        kind="sglang", model="m", flags=("--max-running-requests", "4", "--device", "cpu")
    )
    words = sglang.command(engine, Candidate.of({"max_running_requests": 8}), 30001)
    assert sglang.shell_line(words) == (
        "python3 -m sglang.launch_server --model-path m --host 127.0.0.1 --port 30001 "
        "--enable-metrics --max-running-requests 4 --device cpu --max-running-requests 8"
    )


def test_the_workers_of_an_engine_meet_on_a_port_of_ours() -> None:
    """The internal port is fixed where one process uses it, and a user's own choice stands."""

    def words(*flags: str) -> list[str]:
        engine = EngineSpec(kind="sglang", model="m", flags=flags)
        return sglang.command(engine, Candidate.of({}), 20001, 20002)

    assert words()[-2:] == ["--nccl-port", "20002"]
    assert "--nccl-port" in words("--dp-size", "1")
    assert "--nccl-port" not in words("--dp-size", "2")
    assert words("--nccl-port=5").count("--nccl-port") == 0
    assert "--nccl-port" not in words("--dist-init-addr", "127.0.0.1:9")


def test_an_emulated_engine_is_started_with_its_hardware() -> None:
    """What is emulated, and how fast, travels on the command line."""
    engine = EngineSpec(kind="emulated", model="m", hardware="h100", speed=20.0)
    words = sglang.command(engine, Candidate.of({}), 30001)
    assert words[:7] == [
        *(sys.executable, "-m", "runners.emulated"),
        *("--emulated-hardware", "h100", "--emulated-speed", "20"),
    ]


def test_the_engine_of_a_study_that_names_no_command_has_packages_too() -> None:
    """What is recorded of the engine's Python is of the one that will be started."""
    plain = EngineSpec(kind="sglang", model="m")
    named = EngineSpec(kind="sglang", model="m", command=("/opt/python", "-m", "x"))
    emulated = EngineSpec(kind="emulated", model="m", hardware="h")

    assert list(sglang.own_command(plain)) == sglang.command(plain, Candidate.of({}), 1)[:3]
    assert sglang.own_command(named) == ("/opt/python", "-m", "x")
    assert sglang.own_command(emulated) == ()


def test_the_launch_line_carries_the_variables_of_the_study() -> None:
    """What the engine was given beside the user's own shell stands in the line to paste."""
    engine = EngineSpec(kind="sglang", model="m", env={"A": "b c"})
    assert sglang.shell_assignments(engine) == "A='b c' "


def test_a_study_file_holds_no_secrets() -> None:
    """What is written down for others may not hold a token: the shell passes it on instead."""
    with pytest.raises(ValidationError, match=r"env\.HF_TOKEN: a study file must hold no secrets"):
        EngineSpec(kind="sglang", model="m", env={"HF_TOKEN": "hf_abc"})
