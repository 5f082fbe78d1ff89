"""The load client against a server whose behaviour is known: every stamp and count is honest."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.errors import CandidateRejectedError, MachineFaultError
from runners.load_process import LoadResult, run_load
from runners.measure import measurement_of
from runners.records import FILLER, MEASURED, UNFINISHED, WARMUP, RequestRecord
from runners.spec import LoadSpec, WorkloadSpec
from runners.sse_stream import Answer, AnswerStream, EventSplitter
from runners.workload import plan, write_plan
from tests.truth_server import Script, TruthServer

OUTPUT = 8


class Progress(list[tuple[str, int, int]]):
    """Hears the client's phases."""

    def __call__(self, phase: str, done: int, of: int) -> None:
        self.append((phase, done, of))


def quiet() -> None:
    """Watch nothing."""


def send(
    server: TruthServer,
    folder: Path,
    *,
    watch: Callable[[], None] = quiet,
    progress: Callable[[str, int, int], None] | None = None,
    **load: Any,
) -> LoadResult:
    spec = LoadSpec(**{"concurrency": 4, "rounds": 3, **load})
    workload = WorkloadSpec(kind="fixed", input_tokens=12, output_tokens=OUTPUT, load=spec)
    write_plan(folder / "plan.jsonl", plan(workload, 1000))
    return run_load(
        base_url=server.url,
        model="toy",
        plan_path=folder / "plan.jsonl",
        load=spec,
        folder=folder,
        on_progress=Progress() if progress is None else progress,
        watch=watch,
    )


def measured(result: LoadResult) -> list[RequestRecord]:
    return [r for r in result.records if r.phase == MEASURED]


def faulty_rounds(fault: str, **script: Any) -> Callable[[int, dict[str, Any]], Script]:
    """Break every fourth request, from the fifth on."""

    def answer(number: int, _body: dict[str, Any]) -> Script:
        return Script(fault=fault if number >= 4 and number % 4 == 0 else None, **script)

    return answer


def test_every_planned_request_is_measured_once(tmp_path: Path) -> None:
    """Each slot's warm-up and measured requests end once, with the counts the server gave."""
    progress = Progress()
    with TruthServer(lambda _n, _b: Script(cached_tokens=3)) as server:
        result = send(server, tmp_path, progress=progress)
    assert Counter(r.phase for r in result.records if r.phase != FILLER) == {
        WARMUP: 4,
        MEASURED: 12,
    }
    for record in measured(result):
        assert record.ok, record
        assert (record.output_tokens, record.prompt_tokens, record.cached_tokens) == (8, 12, 3)
        assert (record.status, record.finish_reason) == (200, "length")
        assert len(record.chunk_times_s) == OUTPUT
        assert list(record.chunk_times_s) == sorted(record.chunk_times_s)
        assert record.sent_s < (record.first_token_s or 0) <= (record.last_token_s or 0)
        assert (record.last_token_s or 0) <= record.end_s
    phases = [phase for phase, _, _ in progress]
    assert phases[:2] == [WARMUP, "measuring"]
    assert phases[-1] == "drained"
    assert progress[1] == ("measuring", 0, 12)


def test_the_request_is_what_the_engine_needs(tmp_path: Path) -> None:
    """Greedy, exact length, streamed, with usage, and the prompt as token ids."""
    with TruthServer() as server:
        send(server, tmp_path, concurrency=1, rounds=1)
    body = server.bodies[0]
    assert {key: value for key, value in body.items() if key != "prompt"} == {
        "model": "toy",
        "max_tokens": OUTPUT,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert len(body["prompt"]) == 12


def test_the_load_is_held_to_the_end_and_never_exceeded(tmp_path: Path) -> None:
    """With one slow slot the others send fillers: the server always sees the asked load."""

    def one_is_slow(number: int, _body: dict[str, Any]) -> Script:
        return Script(first_s=0.3 if number == 5 else 0.01)

    with TruthServer(one_is_slow) as server:
        result = send(server, tmp_path, concurrency=4, rounds=2)
    assert server.peak == 4
    assert server.connections == result.report.connections == 4
    fillers = [r for r in result.records if r.phase == FILLER]
    assert sum(r.ok for r in fillers) > 8  # more than were planned: they go round and round
    assert {r.failure for r in fillers} <= {None, UNFINISHED}
    facts = measurement_of(
        result.records, result.report, engine=None, gpu=None, speed=1.0, startup_s=None
    )
    assert facts.achieved_concurrency is not None
    assert facts.achieved_concurrency > 3.6
    assert facts.failed_requests == 0
    assert facts.measured_requests == 8


def test_every_run_sends_the_same_in_the_same_order(tmp_path: Path) -> None:
    """A slow engine and a fast one get the same prompts, slot by slot in the same order."""
    orders = []
    for gap_s in (0.0, 0.003):
        with TruthServer(lambda _n, _b, gap_s=gap_s: Script(gap_s=gap_s)) as server:  # type: ignore[misc]
            result = send(server, tmp_path)
        real = [r for r in result.records if r.phase != FILLER]
        orders.append(sorted((r.slot, r.sent_s, r.id) for r in real))
    first, second = ([(slot, name) for slot, _, name in order] for order in orders)
    assert first == second


def test_an_event_without_text_is_no_token(tmp_path: Path) -> None:
    """The first event comes at once and is empty; the first token is what comes later."""
    with TruthServer(lambda _n, _b: Script(empty_first=True, first_s=0.1)) as server:
        result = send(server, tmp_path, rounds=1)
    for record in measured(result):
        assert record.first_token_s is not None
        assert record.first_token_s - record.sent_s >= 0.09
        assert len(record.chunk_times_s) == OUTPUT


def test_tokens_are_counted_by_the_engine(tmp_path: Path) -> None:
    """Three tokens a chunk: 3 chunks, and 8 tokens because usage says so."""
    with TruthServer(lambda _n, _b: Script(tokens_per_chunk=3)) as server:
        result = send(server, tmp_path, rounds=1)
    assert {(len(r.chunk_times_s), r.output_tokens) for r in measured(result)} == {(3, 8)}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("refuse", "http"),
        ("error", "in_stream_error"),
        ("cut", "cut"),
        ("short", "length"),
        ("no_done", "no_done"),
        ("silent", "timeout_first_token"),
        ("stall", "timeout_stall"),
    ],
)
def test_a_broken_answer_is_a_failure_of_its_kind(fault: str, kind: str, tmp_path: Path) -> None:
    """Every fourth request breaks: those are failures, the slots go on, the others succeed."""
    with TruthServer(faulty_rounds(fault)) as server:
        result = send(server, tmp_path, first_token_timeout_s=0.5, stall_timeout_s=0.5)
    done = measured(result)
    failed = [r for r in done if not r.ok]
    assert len(done) == 12
    assert failed
    assert {r.failure for r in failed} == {kind}
    assert all(r.detail for r in failed)
    assert all(r.late == kind.startswith("timeout") for r in failed)
    facts = measurement_of(
        result.records, result.report, engine=None, gpu=None, speed=1.0, startup_s=None
    )
    assert facts.failures == {kind: len(failed)}
    assert facts.output_tokens == OUTPUT * (12 - len(failed))


def test_a_request_that_takes_too_long_in_all_is_given_up(tmp_path: Path) -> None:
    """Tokens keep coming, but not fast enough: the whole request has a limit of its own."""
    slow = Script(gap_s=0.15)

    with TruthServer(lambda n, _b: slow if n == 4 else Script()) as server:
        result = send(server, tmp_path, concurrency=1, rounds=5, total_timeout_s=0.4)
    assert [r.failure for r in measured(result)].count("timeout_total") == 1


def test_no_tokens_appear_from_nowhere(tmp_path: Path) -> None:
    """Streams that end in an error give no throughput: what counts is what was delivered."""
    with TruthServer(faulty_rounds("error")) as server:
        result = send(server, tmp_path)
    facts = measurement_of(
        result.records, result.report, engine=None, gpu=None, speed=1.0, startup_s=None
    )
    assert facts.output_tokens_per_s * facts.window_s <= server.tokens_sent
    assert facts.output_tokens_per_s * facts.window_s >= facts.output_tokens - 0.5


@pytest.mark.parametrize(
    "script",
    [
        Script(piece=7),
        Script(joined=True),
        Script(line_end="\r\n"),
        Script(line_end="\r\n", piece=5),
    ],
)
def test_events_arrive_whole_however_they_are_sent(script: Script, tmp_path: Path) -> None:
    """Events over several reads, and several events in one read, are the same events."""
    with TruthServer(lambda _n, _b: script) as server:
        result = send(server, tmp_path, concurrency=2, rounds=2)
    assert all(r.ok and len(r.chunk_times_s) == OUTPUT for r in measured(result))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_splitting_does_not_depend_on_the_reads(size: int, end: str) -> None:
    """Cut into pieces of any size, a body holds the same events; comments are none."""
    lines = ["data: one", "", ": ping", "", "event: x", "data:two", "data: 2", "", "data: z", ""]
    body = "".join(line + end for line in lines).encode()
    splitter = EventSplitter()
    found = [e for i in range(0, len(body), size) for e in splitter.feed(body[i : i + size])]
    assert found == [b"one", b"two\n2", b"z"]


def test_an_answer_says_what_is_wrong_with_it() -> None:
    """No finish reason, an abort, no usage, no text, and what is no JSON are failures."""

    def verdict(*events: str) -> tuple[str, str] | None:
        answer = Answer()
        answer.status = 200
        for event in (*events, "[DONE]"):
            answer.take(event.encode(), 1.0)
        return answer.failure(2)

    text = '{"choices": [{"text": "ab", "finish_reason": %s}]}'
    usage = '{"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 5}}'
    assert verdict(text % '"length"', usage) is None
    assert verdict(text % '"stop"', usage) is None
    for events, kind, words in (
        ((text % '"abort"', usage), "in_stream_error", "found abort"),
        ((text % "null", usage), "in_stream_error", "found None"),
        ((text % '"length"',), "length", "found no usage"),
        ((text.replace("ab", "") % '"length"', usage), "no_content", "no text"),
        ((text % '"length"', "oops", usage), "in_stream_error", "found oops"),
        ((text % '"length"', '{"error": "full"}', usage), "in_stream_error", "full"),
        (('{"object": "error", "message": "too long"}',), "in_stream_error", "too long"),
    ):
        found = verdict(*events)
        assert found is not None
        assert found[0] == kind
        assert words in found[1]


def test_answers_follow_each_other_on_one_connection() -> None:
    """The second answer holds nothing of the first."""
    stream = AnswerStream()
    body = b'data: {"choices": [{"text": "a"}]}\n\n'
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    for now_s in (1.0, 2.0):
        answer = stream.begin()
        stream.feed(whole, now_s)
        assert answer.complete
        assert answer.keep_alive
        assert answer.chunk_times_s == [now_s]


def test_an_engine_that_answers_nothing_is_rejected(tmp_path: Path) -> None:
    """When all requests fail the client ends early, and there is no measurement."""
    with TruthServer(lambda _n, _b: Script(fault="refuse")) as server:
        result = send(server, tmp_path, concurrency=8, rounds=50)
    assert result.report.gave_up is not None
    assert len(result.records) < 100
    with pytest.raises(CandidateRejectedError, match=r"answered nothing.*http: 400.*too long"):
        measurement_of(
            result.records, result.report, engine=None, gpu=None, speed=1.0, startup_s=None
        )


def test_a_refused_connection_is_a_failure_to_connect(tmp_path: Path) -> None:
    """Nobody listens: the requests fail with connect, and the load ends early."""
    with TruthServer() as server:
        pass
    result = send(server, tmp_path)
    assert {r.failure for r in result.records if r.failure != UNFINISHED} == {"connect"}
    assert result.report.gave_up is not None


def test_when_the_engine_dies_the_client_goes(tmp_path: Path) -> None:
    """What the watch raises reaches the caller, and no client is left."""
    seen: list[int] = []

    def engine_died() -> None:
        seen.extend(client_pids())
        if seen:
            raise CandidateRejectedError("the engine died")

    with (
        TruthServer(lambda _n, _b: Script(fault="silent")) as server,
        pytest.raises(CandidateRejectedError, match="the engine died"),
    ):
        send(server, tmp_path, watch=engine_died)
    assert seen
    assert not alive(seen[0])


def test_a_client_that_crashes_is_the_machines_fault(tmp_path: Path) -> None:
    """A plan that cannot be read ends the client; the error quotes its last line."""
    (tmp_path / "plan.jsonl").write_text("no plan\n")
    with pytest.raises(MachineFaultError, match=r"ended with 1: .*JSONDecodeError"):
        run_load(
            base_url="http://127.0.0.1:9",
            model="toy",
            plan_path=tmp_path / "plan.jsonl",
            load=LoadSpec(concurrency=1, rounds=1),
            folder=tmp_path,
            on_progress=Progress(),
            watch=quiet,
        )


PARENT = """
import sys
from pathlib import Path
from runners.load_process import run_load
from runners.spec import LoadSpec
folder = Path(sys.argv[2])
run_load(base_url=sys.argv[1], model="toy", plan_path=folder / "plan.jsonl",
         load=LoadSpec(concurrency=2, rounds=2), folder=folder,
         on_progress=lambda phase, done, of: print(phase, flush=True), watch=lambda: None)
"""


def test_when_the_parent_is_killed_the_client_goes(tmp_path: Path) -> None:
    """SIGKILL gives the parent no chance to clean up; the client leaves by itself."""
    spec = LoadSpec(concurrency=2, rounds=2)
    workload = WorkloadSpec(kind="fixed", input_tokens=4, output_tokens=4, load=spec)
    write_plan(tmp_path / "plan.jsonl", plan(workload, 1000))
    with TruthServer(lambda _n, _b: Script(fault="silent")) as server:
        command = [sys.executable, "-c", PARENT, server.url, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"warmup\n"
            [client] = client_pids(parent.pid)
            parent.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 20
        while alive(client) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not alive(client)


def test_the_client_starts_without_heavy_libraries() -> None:
    """Its process needs neither pydantic nor httpx nor numpy."""
    code = "import sys, runners.load_client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {"pydantic", "httpx", "numpy", "scipy"}.isdisjoint(done.stdout.split())


def test_the_client_accounts_for_itself(tmp_path: Path) -> None:
    """Its CPU share and its connections are reported for the measured window."""
    with TruthServer(lambda _n, _b: Script(first_s=0.05, gap_s=0.01)) as server:
        result = send(server, tmp_path, concurrency=2, rounds=4)
    report = result.report
    assert report.gave_up is None
    assert report.connections == 2
    assert 0 < report.cpu_share < 1
    assert report.wall_s >= 4 * (0.05 + 7 * 0.01) * 0.9


def client_pids(parent: int | None = None) -> list[int]:
    """The load clients among the children of *parent*, by default ours."""
    wanted = os.getpid() if parent is None else parent
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            command = (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        if int(stat[1]) == wanted and b"runners.load_client" in command:
            found.append(int(folder.name))
    return found


def alive(pid: int) -> bool:
    """True while *pid* runs; a zombie has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"
