"""MLflow as a view of the journal: idempotent, complete, and never in tuning's way."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from runners import Rejected
from runners.records import write_records
from search_spaces import Value
from tests.study_factory import START, Step, measured, usual_steps, write_study
from tuner.export_loop import export_on_request
from tuner.export_process import ExportProcess
from tuner.journal import Closed, Journal
from tuner.mlflow_exporter import LARGEST_FILE, ExportReport, export
from tuner.mlflow_pages import Pages, pages_of
from tuner.report.study_record import StudyRecord, read_study
from tuner.report.summary import summarize
from tuner.run_facts import PARENT, best_so_far, launch_run, study_run
from tuner.trial import Launch

QUICK = 30
GOOD: dict[str, Value] = {
    "schedule_policy": "lpm",
    "max_running_requests": 192,
    "token_budget": 2048,
}
STEPS = [
    Step(stage="baseline"),
    Step(stage="capacity", values=GOOD),
    Step(stage="capacity", values={"mem_fraction_static": 0.94}, outcome=Rejected(reason="OOM")),
    Step(stage="capacity", values={"token_budget": 4096}, lost=True),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty local store; its tables are made once."""
    return f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlruns' / 'mlflow.db'}"


def client_of(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def runs_of(uri: str, report: ExportReport) -> list[Any]:
    """Return the study's launches as MLflow has them, by name."""
    nested = f"tags.`{PARENT}` = '{report.parent_run_id}'"
    found = client_of(uri).search_runs([report.experiment_id], nested)
    return sorted(found, key=lambda run: run.info.run_name)


def files_of(uri: str, run_id: str, place: str | None = None) -> set[str]:
    return {item.path for item in client_of(uri).list_artifacts(run_id, place)}


def test_every_launch_becomes_a_nested_run(store: str, tmp_path: Path) -> None:
    """One parent for the study, one child for each launch, failed and lost ones too."""
    report = export(write_study(tmp_path / "s1", STEPS, requests=QUICK), store, "all")
    runs = runs_of(store, report)
    assert [run.info.run_name for run in runs] == [
        "000 baseline",
        "001 capacity",
        "002 capacity",
        "003 capacity",
    ]
    assert [run.info.status for run in runs] == ["FINISHED", "FINISHED", "FAILED", "KILLED"]
    assert runs[2].data.tags["reason"] == "OOM"
    assert [run.data.tags["feasible"] for run in runs[1:3]] == ["true", "false"]
    parent = client_of(store).get_run(report.parent_run_id)
    assert parent.info.run_name == "s1"
    assert parent.info.status == "FINISHED"
    assert parent.info.start_time == int(START.timestamp() * 1000)
    assert parent.data.tags["winner"] == "1"


def test_exporting_again_doubles_nothing(store: str, tmp_path: Path) -> None:
    """The second export makes no run, and leaves each finished one alone."""
    folder = write_study(tmp_path / "s2", STEPS, requests=QUICK)
    first, second = export(folder, store, "again"), export(folder, store, "again")
    assert (first.created, first.skipped) == (5, 0)
    assert (second.created, second.updated, second.skipped) == (0, 1, 4)
    assert second.child_run_ids == first.child_run_ids
    history = client_of(store).get_metric_history(first.child_run_ids[1], "output_tokens_per_s")
    series = client_of(store).get_metric_history(first.parent_run_id, "best.output_tokens_per_s")
    assert len(history) == 1
    assert [point.step for point in series] == [1, 2]


def test_a_study_that_goes_on_is_brought_up_to_date(store: str, tmp_path: Path) -> None:
    """A launch on its way is a running run, and is finished when it ended."""
    steps = [*STEPS[:2], Step(stage="capacity", values=GOOD, pending=True)]
    folder = write_study(tmp_path / "s3", steps, closed=False, requests=QUICK)
    first = export(folder, store, "goes on")
    assert [run.info.status for run in runs_of(store, first)][2] == "RUNNING"
    assert client_of(store).get_run(first.parent_run_id).info.status == "RUNNING"
    with Journal(folder / "journal.jsonl") as journal:
        journal.finished(2, measured(GOOD, 2), took_s=9.0, at="2026-11-30T09:00:00+00:00")
        journal.closed(Closed(at="2026-11-30T10:00:00+00:00", verdict="found", reason="done"))
    second = export(folder, store, "goes on")
    assert (second.created, second.updated, second.skipped) == (0, 2, 2)
    assert second.child_run_ids == first.child_run_ids
    ended = runs_of(store, second)[2].info
    assert ended.status == "FINISHED"
    assert ended.start_time == int((START + timedelta(minutes=20)).timestamp() * 1000)
    assert ended.end_time - ended.start_time == 9000  # not since the study began
    assert client_of(store).get_run(first.parent_run_id).info.status == "FINISHED"


def test_files_are_kept_with_their_runs(store: str, tmp_path: Path) -> None:
    """A launch's files and a picture of its latencies; a file too large is a note instead."""
    folder = write_study(tmp_path / "s4", STEPS[:2], requests=QUICK)
    os.truncate(folder / "launches" / "001" / "engine.log", LARGEST_FILE + 1)
    report = export(folder, store, "files")
    baseline, good = report.child_run_ids
    assert files_of(store, baseline) >= {"engine.log", "launch.txt", "requests.jsonl", "plots"}
    assert files_of(store, baseline, "plots") == {"plots/latencies.png"}
    assert "engine.log.left_out.txt" in files_of(store, good)
    assert "engine.log" not in files_of(store, good)
    assert files_of(store, report.parent_run_id) >= {
        "environment.json",
        "environment.txt",
        "journal.jsonl",
        "study.toml",
        "workload.jsonl",
    }
    assert (Path(store.removeprefix("sqlite:///")).parent / "artifacts").is_dir()


def test_the_compare_page_is_named_for_a_local_store_and_a_server() -> None:
    """The address holds the runs and the experiment; a server's own address is kept."""
    pages = Pages(experiment_id="7", measured_run_ids=("a", "b"))
    url = pages.compare(pages_of("http://tracking.example:8080/"))
    assert unquote(url) == (
        'http://tracking.example:8080/#/compare-runs?runs=["a", "b"]&experiments=["7"]'
    )
    assert pages_of("sqlite:///x.db", 5001) == "http://127.0.0.1:5001"


def record_of(folder: Path, steps: list[Step], **more: Any) -> StudyRecord:
    return read_study(write_study(folder, steps, requests=QUICK, **more))


def test_measured_launches_have_the_same_metric_keys(tmp_path: Path) -> None:
    """Runs can be compared: the same figures, a margin for each limit, and a verdict."""
    record = record_of(tmp_path / "s", usual_steps(14))
    facts = [launch_run(record, *pair) for pair in record.launches()]
    ran = [f for f in facts if f.status == "FINISHED"]
    assert len({frozenset(f.metrics) for f in ran}) == 1
    assert set(ran[0].metrics) >= {"slo_ok", "score", "margin.ttft_p95_ms", "margin.failed_share"}
    rejected = next(f for f in facts if f.tags["state"] == "rejected")
    assert dict(rejected.metrics) == {"slo_ok": 0.0}
    invalid = next(f for f in facts if f.tags["state"] == "invalid")
    assert dict(invalid.metrics) == {}
    assert invalid.tags["feasible"] == "unknown"


def test_knobs_are_parameters_as_asked_and_as_run(tmp_path: Path) -> None:
    """A knob has its plain name; what the engine made of it stands beside it."""
    asked = {"max_running_requests": 384, "mem_fraction_static": 0.7}
    record = record_of(tmp_path / "s", [Step(stage="c", values=asked)])
    (facts,) = (launch_run(record, *pair) for pair in record.launches())
    assert facts.params["max_running_requests"] == "384"
    assert facts.params["effective.max_running_requests"] == "210"
    assert "token_budget" not in facts.params


def test_no_infinite_number_reaches_the_server(tmp_path: Path) -> None:
    """A timed-out tail is dropped from the metrics and named in a tag."""
    endless = measured(GOOD, 0, ttft_p95_ms=math.inf)
    record = record_of(tmp_path / "s", [Step(stage="c", outcome=endless)])
    (facts,) = (launch_run(record, *pair) for pair in record.launches())
    assert all(math.isfinite(value) for value in facts.metrics.values())
    assert facts.tags["infinite_metrics"] == "ttft_p95_ms"
    assert facts.metrics["slo_ok"] == 0.0


def test_emulated_runs_say_so(tmp_path: Path) -> None:
    """The name, a tag and the description of the study's run tell that it is emulated."""
    record = record_of(tmp_path / "s", STEPS[:2], emulated=True)
    summary = summarize(record.study(), record.history, record.objective.maximize)
    facts = study_run(record, summary)
    assert facts.name == "[emulated] s"
    assert facts.tags["emulated"] == "true"
    assert "EMULATED" in facts.tags["mlflow.note.content"]
    assert all(launch_run(record, *p).tags["emulated"] == "true" for p in record.launches())


def test_the_best_so_far_never_falls_and_begins_with_the_first_feasible(tmp_path: Path) -> None:
    """The series has no point before a setting kept the limits."""
    record = record_of(tmp_path / "s", usual_steps(14))
    series = best_so_far(record)
    assert list(series.values()) == sorted(series.values())
    assert min(series) == next(t.number for t in record.trials if t.feasible)
    assert best_so_far(record_of(tmp_path / "t", [STEPS[2]])) == {}


def test_a_long_reason_is_cut_for_the_server(tmp_path: Path) -> None:
    """MLflow takes no more than 8000 characters in a tag."""
    record = record_of(tmp_path / "s", [Step(stage="c", outcome=Rejected(reason="x" * 9000))])
    (facts,) = (launch_run(record, *pair) for pair in record.launches())
    assert len(facts.tags["reason"]) == 5000


class Gate:
    """Requests that come in one by one, each when the test lets it."""

    def __init__(self) -> None:
        self.open = threading.Semaphore(0)
        self.left = 0

    def __iter__(self) -> Iterator[str]:
        while True:
            self.open.acquire()
            if self.left == 0:
                return
            self.left -= 1
            yield "sync\n"


class Said:
    """Remembers what was written."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


def test_the_exporter_exports_once_more_after_the_last_request() -> None:
    """The end of the requests is followed by an export, and its trouble is the answer."""
    gate, said = Gate(), Said()
    results = iter(["unreachable", None])
    calls = []

    def once() -> str | None:
        calls.append(1)
        if len(calls) == 1:
            gate.open.release()  # the end comes in while the first export runs
        return next(results)

    export_on_request(once, gate, said)
    assert len(calls) == 2
    assert json.loads(said.text) == {"trouble": None}


def test_a_dead_server_never_stops_tuning(tmp_path: Path) -> None:
    """Syncing returns whatever happens, and finishing says in a sentence what is missing."""
    folder = write_study(tmp_path / "s", STEPS[:1], requests=QUICK)
    environment = {**os.environ, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    uri = f"http://127.0.0.1:{free_port()}"
    launch = Launch(number=0, stage="c", candidate=read_study(folder).trials[0].candidate)
    with ExportProcess(folder, uri, "e", environment=environment) as exporter:
        exporter.launched(launch, read_study(folder).study())
        trouble = exporter.finish(timeout_s=120)
    assert trouble is not None
    assert trouble.startswith(f"MLflow at {uri} could not be filled: ")
    assert len(trouble) < 500
    assert exporter.finish(timeout_s=1) is None


def test_an_exporter_that_was_killed_is_noticed_at_the_end(tmp_path: Path) -> None:
    """Requests to a dead exporter are dropped quietly; the end tells where to look."""
    folder = write_study(tmp_path / "s", STEPS[:1], requests=QUICK)
    with ExportProcess(folder, f"sqlite:///{tmp_path}/never.db", "e") as exporter:
        assert exporter.pid is not None
        os.kill(exporter.pid, signal.SIGKILL)
        os.waitid(os.P_PID, exporter.pid, os.WEXITED | os.WNOWAIT)
        exporter.sync()
        trouble = exporter.finish(timeout_s=10)
    assert trouble is not None
    assert "mlflow.log" in trouble


def test_an_exporter_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """The tuner's end is not held up, and nothing is left running."""
    folder = write_study(tmp_path / "s", STEPS[:1], requests=QUICK)
    with ExportProcess(folder, f"sqlite:///{tmp_path}/never.db", "e") as exporter:
        pid = exporter.pid
        trouble = exporter.finish(timeout_s=0)
    assert trouble is not None
    assert "did not take everything within 0 s" in trouble
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A real MLflow server on the loopback interface."""
    port = free_port()
    words = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--workers", "1"]
    words += ["--artifacts-destination", str(tmp_path / "kept")]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **quiet, "DO_NOT_TRACK": "1"},
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()  # noqa: S310  # our own server
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
        else:
            return
    raise AssertionError(f"no answer from {url}")


@pytest.mark.slow
def test_a_real_server_is_filled_by_the_process(server: str, tmp_path: Path) -> None:
    """Through HTTP the runs and their files arrive, and the driver hears that all is well."""
    folder = write_study(tmp_path / "s", STEPS, requests=QUICK, emulated=True)
    with ExportProcess(folder, server, "over http") as exporter:
        exporter.sync()
        assert exporter.finish(timeout_s=300) is None
    report = export(folder, server, "over http")
    assert (report.created, report.skipped) == (0, 4)
    assert len(runs_of(server, report)) == 4
    assert "requests.jsonl" in files_of(server, report.child_run_ids[0])
    assert report.url.startswith(f"{server}/#/compare-runs?")


def test_records_without_a_success_give_no_picture(store: str, tmp_path: Path) -> None:
    """A launch whose requests all failed is exported without a plot of latencies."""
    folder = write_study(tmp_path / "s5", STEPS[:1], requests=QUICK)
    write_records(folder / "launches" / "000" / "requests.jsonl", [])
    report = export(folder, store, "no success")
    assert "plots" not in files_of(store, report.child_run_ids[0])
