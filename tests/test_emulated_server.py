"""The emulated engine as a process: what a client and a launcher see of it."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from runners.emulated.virtual import emulate
from runners.records import MEASURED
from tests.emulated_load import fixed_plan, settings, tpot_s, ttft_s

READY_WITHIN_S = 60.0


@dataclass(frozen=True)
class Live:
    """A running emulated engine."""

    process: "subprocess.Popen[bytes]"
    client: httpx.Client
    port: int
    log: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def words(*more: str, speed: float = 20.0) -> list[str]:
    return [
        *(sys.executable, "-m", "runners.emulated", "--model-path", "Llama-3.1-8B"),
        *("--emulated-hardware", "A100-80G", "--emulated-speed", str(speed), *more),
    ]


def died(*more: str) -> tuple[int, str]:
    """Start an engine that is expected to end by itself."""
    ended = subprocess.run(
        words(*more, speed=200.0), check=False, capture_output=True, text=True, timeout=60
    )
    return ended.returncode, ended.stderr


@contextmanager
def launched(folder: Path, *more: str, speed: float = 20.0) -> Iterator[Live]:
    port, log = free_port(), folder / "engine.log"
    with log.open("wb") as out:
        process = subprocess.Popen(words("--port", str(port), *more, speed=speed), stderr=out)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20.0) as client:
            wait_until_ready(client, process)
            yield Live(process=process, client=client, port=port, log=log)
    finally:
        process.kill()
        process.wait()


def wait_until_ready(client: httpx.Client, process: "subprocess.Popen[bytes]") -> None:
    limit_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < limit_s:
        assert process.poll() is None
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    raise AssertionError("not ready")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    more = ("--enable-metrics", "--enable-cache-report", "--random-seed", "5")
    with launched(tmp_path_factory.mktemp("engine"), *more) as engine:
        yield engine


def events(live: Live, path: str, body: dict[str, object]) -> tuple[list[dict[str, object]], int]:
    """Return the stream's events but the end mark, and how often the socket had something."""
    data, reads = b"", 0
    with live.client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        for piece in answer.iter_raw():
            data += piece
            reads += 1
    lines = [line[6:] for line in data.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]], reads


ASK: dict[str, object] = {"prompt": [5, 6, 7], "max_tokens": 12, "ignore_eos": True}


def test_completions_stream_one_event_per_token_as_they_come(live: Live) -> None:
    """The last content event has the finish reason; usage comes after it when asked for."""
    got, reads = events(
        live, "/v1/completions", {**ASK, "stream_options": {"include_usage": True}}
    )

    choices = [event["choices"] for event in got]
    assert [len(c) for c in choices] == [1] * 12 + [0]  # type: ignore[arg-type]
    assert [c[0]["finish_reason"] for c in choices[:-1]] == [None] * 11 + ["length"]  # type: ignore[index]
    assert all(c[0]["text"] for c in choices[:-1])  # type: ignore[index]
    usage = got[-1]["usage"]
    assert isinstance(usage, dict)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 12)
    assert reads > 3


def test_a_chat_stream_has_a_role_first_and_an_empty_delta_last(live: Live) -> None:
    """Two events more than tokens, as SGLang sends them."""
    body: dict[str, object] = {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
    }

    got, _ = events(live, "/v1/chat/completions", body)

    deltas = [event["choices"][0]["delta"] for event in got]  # type: ignore[index]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all(delta["content"] for delta in deltas[1:-1])
    assert (len(deltas), deltas[-1]) == (6, {})


def test_generate_repeats_all_the_output_in_each_event(live: Live) -> None:
    """/generate is cumulative."""
    body: dict[str, object] = {
        "text": "hello",
        "sampling_params": {"max_new_tokens": 4, "ignore_eos": True},
    }

    got, _ = events(live, "/generate", body)

    assert [len(event["output_ids"]) for event in got] == [1, 2, 3, 4]  # type: ignore[arg-type]
    assert got[-1]["meta_info"]["completion_tokens"] == 4  # type: ignore[index]


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        ("/v1/completions", ASK, lambda a: a["usage"]["completion_tokens"]),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12},
            lambda a: a["usage"]["completion_tokens"],
        ),
        (
            "/generate",
            {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 12}},
            lambda a: len(a["output_ids"]),
        ),
    ],
)
def test_without_streaming_the_answer_comes_whole(
    live: Live, path: str, body: dict[str, object], count: object
) -> None:
    """The same tokens, in one piece."""
    assert callable(count)
    assert count(live.client.post(path, json=body).json()) == 12


def test_cached_tokens_are_reported_and_a_flush_forgets_them(live: Live) -> None:
    """The second time all but one token come from the cache, after a flush none."""
    body = {"prompt": list(range(300, 400)), "max_tokens": 2}

    def cached() -> int:
        usage = live.client.post("/v1/completions", json=body).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert live.client.post("/flush_cache").status_code == 200
    assert [cached(), cached()] == [0, 99]
    assert live.client.get("/flush_cache").status_code == 200
    assert cached() == 0


def test_a_busy_engine_refuses_to_flush_and_an_abandoned_request_is_dropped(live: Live) -> None:
    """While a request runs the cache stays; when its client leaves, the engine is idle again."""
    long = {**ASK, "max_tokens": 60_000, "stream": True}
    with live.client.stream("POST", "/v1/completions", json=long) as answer:
        pieces = answer.iter_raw()  # its end would be ours
        next(pieces)
        assert live.client.post("/flush_cache").status_code == 400
        assert loads(live) == (1, 0)

    limit_s = time.monotonic() + 10
    while loads(live) != (0, 0):
        assert time.monotonic() < limit_s
    assert live.client.post("/flush_cache").status_code == 200


def loads(live: Live) -> tuple[int, int]:
    rank = live.client.get("/v1/loads").json()["loads"][0]
    return rank["num_running_reqs"], rank["num_waiting_reqs"]


def test_counters_rise_by_what_was_served(live: Live) -> None:
    """Under SGLang's names."""
    names = ("prompt_tokens_total", "generation_tokens_total", "num_requests_total")
    before = metrics(live)
    live.client.post("/v1/completions", json=ASK)

    assert [metrics(live)[n] - before[n] for n in names] == [3, 12, 1]
    assert "sglang:cached_tokens_total{" in live.client.get("/metrics").text
    assert 'cache_source="device"' in live.client.get("/metrics").text


def metrics(live: Live) -> dict[str, float]:
    lines = live.client.get("/metrics").text.splitlines()
    rows = [line.removeprefix("sglang:") for line in lines if not line.startswith("#")]
    return {row.partition("{")[0]: float(row.rpartition(" ")[2]) for row in rows}


def test_server_info_tells_what_runs_and_that_it_is_emulated(live: Live) -> None:
    """Resolved settings, the seed, the pool, and how far its clock fell behind."""
    live.client.post("/v1/completions", json=ASK)
    info = live.client.get("/server_info").json()

    assert info == {**info, "emulated": True, "hardware": "A100-80G", "speed": 20.0}
    assert (info["random_seed"], info["chunked_prefill_size"]) == (5, 8192)
    assert info["max_total_num_tokens"] == 421_924
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 2048
    assert info["version"].startswith("emulated-")
    assert str(live.port) in info["launch_command"]
    assert 0 <= info["emulation_lag_p99_ms"] <= info["emulation_lag_max_ms"]
    assert info.keys() == live.client.get("/get_server_info").json().keys()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": "x", "max_tokens": 200_000}, "Requested token count exceeds the model's"),
        ({"prompt": [1] * 131_070, "max_tokens": 1}, "exceeds the maximum allowed length"),
        ({"prompt": []}, "one prompt per request"),
        ({"prompt": [128_256]}, "token ids must be from 0 to 128255"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens must be a whole number of at least 1"),
    ],
)
def test_a_request_that_cannot_be_served_is_told_why(
    live: Live, body: dict[str, object], said: str
) -> None:
    """HTTP 400, with SGLang's sentence where it has one."""
    answer = live.client.post("/v1/completions", json=body)

    assert answer.status_code == 400
    assert said in answer.json()["message"]


def test_unknown_paths_and_methods_are_errors(live: Live) -> None:
    """404 and 405, not a guess."""
    assert live.client.get("/nothing").status_code == 404
    assert live.client.get("/generate").status_code == 405
    assert live.client.get("/ping").status_code == 200
    assert live.client.get("/v1/models").json()["data"][0]["id"] == "Llama-3.1-8B"


def test_the_log_begins_with_a_warning_and_has_sglangs_lines(live: Live) -> None:
    """Nobody can take it for a measurement, and a launcher that reads SGLang's log is served."""
    lines = live.log.read_text().splitlines()

    assert "EMULATED" in lines[0]
    assert "no figure it gives is a measurement of real hardware" in lines[0]
    for said in ("Load weight end", "KV Cache is allocated", "max_total_num_tokens=421924"):
        assert any(said in line for line in lines)
    assert any("The server is fired up and ready to roll!" in line for line in lines)


def test_metrics_are_served_only_when_asked_for_and_sigterm_drains(tmp_path: Path) -> None:
    """A request in flight is answered in full, then the process ends well."""
    with launched(tmp_path) as engine:
        assert engine.client.get("/metrics").status_code == 404
        body = {**ASK, "max_tokens": 400, "stream": True}
        with engine.client.stream("POST", "/v1/completions", json=body) as answer:
            pieces = answer.iter_raw()
            first = next(pieces)
            engine.process.send_signal(signal.SIGTERM)
            data = first + b"".join(pieces)

        assert data.count(b'"text"') == 400
        assert data.endswith(b"data: [DONE]\n\n")
        assert engine.process.wait(timeout=20) == 0


def test_a_flag_that_sglang_does_not_have_ends_with_2() -> None:
    """Before anything else happens."""
    code, said = died("--radix-trees")

    assert code == 2
    assert "error: unrecognized arguments: --radix-trees" in said


def test_a_port_in_use_ends_with_3() -> None:
    """In the words of the real server."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        code, said = died("--port", str(port))

    assert code == 3
    assert f"bind on address ('127.0.0.1', {port}): address already in use" in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--mem-fraction-static", "0.1"), "Please try to increase --mem-fraction-static."),
        (("--mem-fraction-static", "0.99"), "Capture cuda graph failed"),
        (("--schedule-policy", "priority"), "Unknown schedule_policy: policy='priority'"),
    ],
)
def test_a_setting_that_kills_sglang_ends_with_137(flags: tuple[str, str], said: str) -> None:
    """With the traceback's last line in the log."""
    code, log = died(*flags)

    assert code == 137
    assert said in log
    assert "Scheduler hit an exception" in log


def test_out_of_memory_under_load_kills_the_server(tmp_path: Path) -> None:
    """It was healthy, and the first heavy batch ends it with 137."""
    with launched(tmp_path, "--mem-fraction-static", "0.975") as engine:
        body = {"prompt": [7] * 8192, "max_tokens": 4}
        with pytest.raises(httpx.TransportError):
            engine.client.post("/v1/completions", json=body)

        assert engine.process.wait(timeout=20) == 137
        assert "torch.OutOfMemoryError" in engine.log.read_text()


def test_http_and_virtual_time_agree(tmp_path: Path) -> None:
    """The same requests, one after the other, take the same emulated time on either front."""
    speed = 5.0
    requests = fixed_plan(1, rounds=5, lengths=(3000, 40))
    virtual = [r for r in emulate(settings(), requests).records if r.phase == MEASURED]
    ttfts, tpots = [], []
    with launched(tmp_path, speed=speed) as engine:
        for planned in (r for r in requests if r.phase == MEASURED):
            body = {"prompt": planned.prompt, "max_tokens": 40, "stream": True}
            sent_s, times_s = time.perf_counter(), list[float]()
            with engine.client.stream("POST", "/v1/completions", json=body) as answer:
                for _ in answer.iter_raw():
                    times_s.append(time.perf_counter() - sent_s)
            ttfts.append(times_s[0] * speed)
            tpots.append((times_s[-1] - times_s[0]) * speed / 39)

    assert 0.6 < min(ttfts) / min(map(ttft_s, virtual)) < 1.8
    assert 0.6 < min(tpots) / min(map(tpot_s, virtual)) < 1.8
