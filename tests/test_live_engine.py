"""A launched engine while it starts: the trial must not take another server for it."""

import os
import socket
import sys
from pathlib import Path

import pytest

from runners import sglang
from runners.engine_process import launch
from runners.errors import MachineFaultError
from runners.live_engine import LiveEngine
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
