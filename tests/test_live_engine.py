"""A launched engine while it starts: the trial must not take another server for it."""

import os
import socket
import sys
from pathlib import Path

import pytest

from runners import sglang
from runners.cause import Cause
from runners.engine_process import launch
from runners.errors import MachineFaultError
from runners.live_engine import LiveEngine, check_command
from runners.sglang_api import SGLangApi
from runners.spec import EngineSpec
from search_spaces import Candidate

FAKE_ENGINE = Path(__file__).parent / "fake_engine.py"


def test_a_port_taken_while_the_engine_starts_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang may hang when its port is gone; the holder is named long before the time limit."""
    monkeypatch.setattr("runners.live_engine.NEWS_TICKS", 2)
    engine = EngineSpec(
        kind="sglang",
        model="m",
        command=(sys.executable, "-I", "-S", str(FAKE_ENGINE), "--fake=never-ready"),
    )
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            SGLangApi(f"http://127.0.0.1:{port}") as api,
            launch(
                sglang.command(engine, Candidate.of({}), port),
                env=sglang.environment(engine, ("PATH",)),
                log_path=tmp_path / "log",
                grace_s=0.3,
                study_id="s",
            ) as process,
            pytest.raises(MachineFaultError, match=rf"port {port} .*pid {os.getpid()}"),
        ):
            LiveEngine(engine, process, api, port).wait_until_ready(lambda _: None)


@pytest.mark.parametrize(
    "told",
    [
        None,  # an old version, which does not say
        "sglang.launch_server --model-path m --port 20001 --tp-size 2",
        ["--port=20001", "--model-path=m"],
    ],
)
def test_a_server_that_was_started_with_our_words_is_ours(told: object) -> None:
    """Both spellings of a flag count, and silence is no proof of the opposite."""
    check_command(told, "m", 20001)


@pytest.mark.parametrize(
    "told", ["--model-path m --port 20002", "--model-path other --port 20001", "serve", []]
)
def test_a_server_that_was_started_with_other_words_is_not_ours(told: object) -> None:
    """A server that says it was started for another model or port is another one."""
    with pytest.raises(MachineFaultError, match="must be the one we started") as caught:
        check_command(told, "m", 20001)
    assert caught.value.cause is Cause.PORT
