"""Fills MLflow from a study's folder; run it again and nothing doubles.

As a program, `python -m tuner.mlflow_exporter FOLDER URI EXPERIMENT`, it is the other end of
`tuner.export_process`.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.bad_input import BadInputError
from tuner.export_loop import export_on_request
from tuner.journal import JournalError
from tuner.mlflow_pages import Pages, pages_of
from tuner.report.latency_plots import plot_launch
from tuner.report.study_record import StudyRecord, read_study
from tuner.report.summary import summarize
from tuner.report.verdict import WATERMARK
from tuner.run_facts import (
    LAUNCH,
    PARENT,
    STUDY_ID,
    RunFacts,
    best_so_far,
    launch_run,
    milliseconds,
    study_run,
)
from tuner.switches import set_switches
from tuner.trial import Launch, Trial

SQLITE = "sqlite:///"
LARGEST_FILE = 20 * 1024**2
LEFT_OUT = "left_out.txt"
MOST_PARAMS = 100  # MLflow's own limit for one batch
NICENESS = 10
KIND = {"mlflow.experimentKind": "custom_model_development"}  # its pages open on runs, not traces
LONGEST_REASON = 300  # characters; HTTP errors repeat themselves
STUDY_FILES = ("study.toml", "study.yaml", "study.yml")
ONCE_FILES = (*STUDY_FILES, "workload.jsonl", "environment.json", "environment.txt")
FRESH_FILES = ("journal.jsonl", "report.md", "report.html", "report.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export did: runs made, runs brought up to date, runs that were complete already."""

    created: int
    updated: int
    skipped: int
    experiment_id: str
    parent_run_id: str
    child_run_ids: tuple[str, ...]  # by launch number
    url: str  # of the page that compares the measured launches


def export(study_folder: Path, uri: str, experiment: str) -> ExportReport:
    """Bring MLflow at *uri* up to date with the study in *study_folder*.

    Raises:
        BadInputError: there is no study in this folder.
        JournalError: the journal is not one of ours.
        mlflow.exceptions.MlflowException: the store cannot be reached or refuses.
    """
    record = read_study(study_folder)
    return _Export(_client(uri), uri, record).run(experiment)


class _Export:
    """One pass over one study."""

    def __init__(self, client: Any, uri: str, record: StudyRecord) -> None:
        self._client, self._uri, self._record = client, uri, record
        self._created = self._updated = self._skipped = 0

    def run(self, experiment: str) -> ExportReport:
        record = self._record
        summary = summarize(record.study(), record.history, record.objective.maximize)
        self._experiment = _experiment_id(self._client, self._uri, experiment)
        facts = study_run(record, summary)
        parent = self._parent(facts)
        known = {run.data.tags.get(LAUNCH): run for run in self._children(parent)}
        ids = {}
        for launch, trial in record.launches():
            ids[launch.number] = self._child(parent, known.get(str(launch.number)), launch, trial)
        self._refresh(parent, facts)
        measured = tuple(ids[t.number] for t in record.trials if t.score is not None)
        pages = Pages(experiment_id=self._experiment, measured_run_ids=measured)
        pages.write(record.folder.root)
        return ExportReport(
            created=self._created,
            updated=self._updated,
            skipped=self._skipped,
            experiment_id=self._experiment,
            parent_run_id=parent,
            child_run_ids=tuple(ids.values()),
            url=pages.compare(pages_of(self._uri)),
        )

    def _parent(self, facts: RunFacts) -> str:
        found = self._client.search_runs(
            [self._experiment],
            f"tags.`{STUDY_ID}` = '{facts.tags[STUDY_ID]}' and tags.`tuner.kind` = 'study'",
        )
        if found:
            self._updated += 1
            return str(found[0].info.run_id)
        run_id = self._create(facts, {})
        for name in ONCE_FILES:
            _send(self._client, run_id, self._record.folder.root / name)
        return run_id

    def _children(self, parent: str) -> Iterator[Any]:
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment], f"tags.`{PARENT}` = '{parent}'", page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return

    def _child(self, parent: str, run: Any, launch: Launch, trial: Trial | None) -> str:
        if run is not None and run.info.status != "RUNNING":
            self._skipped += 1
            return str(run.info.run_id)
        facts = launch_run(self._record, launch, trial)
        if run is None:
            run_id = self._create(facts, {PARENT: parent})
        else:
            run_id = str(run.info.run_id)
            self._updated += 1
        if facts.status != "RUNNING":
            self._files(run_id, launch, trial)
            self._fill(run_id, facts)
        return run_id

    def _create(self, facts: RunFacts, tags: Mapping[str, str]) -> str:
        run = self._client.create_run(
            self._experiment,
            start_time=facts.start_ms,
            run_name=facts.name,
            tags={**facts.tags, **tags},
        )
        self._created += 1
        return str(run.info.run_id)

    def _fill(self, run_id: str, facts: RunFacts) -> None:
        """Log everything in one batch; the same figures at the same time are one figure."""
        from mlflow.entities import Metric, Param, RunTag

        at = facts.end_ms or facts.start_ms
        params = [Param(name, value) for name, value in facts.params.items()]
        self._client.log_batch(
            run_id,
            metrics=[Metric(name, value, at, 0) for name, value in facts.metrics.items()],
            params=params[:MOST_PARAMS],
            tags=[RunTag(name, value) for name, value in facts.tags.items()],
        )
        for start in range(MOST_PARAMS, len(params), MOST_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + MOST_PARAMS])
        self._client.set_terminated(run_id, facts.status, facts.end_ms)

    def _refresh(self, parent: str, facts: RunFacts) -> None:
        """Bring the study's own run up to date; a study that goes on is running again."""
        from mlflow.entities import Metric, RunTag

        record, client = self._record, self._client
        ended = {t.number: milliseconds(t.started_at) for t in record.trials}
        name = f"best.{record.objective.maximize}"
        best = [Metric(name, v, ended[n], n) for n, v in best_so_far(record).items()]
        tags = [RunTag(name, value) for name, value in facts.tags.items()]
        client.log_batch(parent, metrics=best[-1000:], tags=tags)
        for file in FRESH_FILES:
            _send(client, parent, record.folder.root / file)
        for plot in sorted((record.folder.root / "plots").glob("*.png")):
            _send(client, parent, plot, "plots")
        if facts.status == "RUNNING":
            client.update_run(parent, status="RUNNING")
        else:
            client.set_terminated(parent, facts.status, facts.end_ms)

    def _files(self, run_id: str, launch: Launch, trial: Trial | None) -> None:
        folder = self._record.folder.launch(launch.number)
        if folder.is_dir():
            for path in sorted(p for p in folder.iterdir() if p.is_file()):
                _send(self._client, run_id, path)
        latencies = (
            None if trial is None or trial.score is None else self._record.latencies(launch.number)
        )
        if latencies is None:
            return
        mark = f" ({WATERMARK})" if self._record.emulated else ""
        title = f"{self._record.name}, launch {launch.number}{mark}"
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "latencies.png"
            plot_launch(latencies, self._record.limits, path, title=title)
            _send(self._client, run_id, path, "plots")


def _send(client: Any, run_id: str, path: Path, place: str | None = None) -> None:
    """Keep a file with its run; of one that is too large, keep a note."""
    if not path.is_file():
        return
    if (size := path.stat().st_size) <= LARGEST_FILE:
        client.log_artifact(run_id, str(path), place)
        return
    note = f"{path.name}: {size / 1024**2:.0f} MiB, kept in {path.resolve().parent} only\n"
    client.log_text(run_id, note, f"{path.name}.{LEFT_OUT}")


def _client(uri: str) -> Any:
    set_switches(os.environ, local_ray=True)
    if uri.startswith(SQLITE):
        Path(uri.removeprefix(SQLITE)).parent.mkdir(parents=True, exist_ok=True)
    from mlflow import MlflowClient

    for chatty in ("alembic", "mlflow"):  # after the import, which sets them louder
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri)


def _experiment_id(client: Any, uri: str, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        return str(client.create_experiment(name, _artifacts(uri), KIND))
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _artifacts(uri: str) -> str | None:
    """Keep files beside a local database; a server knows its own place."""
    if not uri.startswith(SQLITE):
        return None
    return (Path(uri.removeprefix(SQLITE)).parent / "artifacts").resolve().as_uri()


def _try_export(folder: Path, uri: str, experiment: str) -> str | None:
    """Export, and return in one sentence why it did not go in, if it did not."""
    from mlflow.exceptions import MlflowException

    try:
        export(folder, uri, experiment)
    except (MlflowException, BadInputError, JournalError, OSError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        return f"MLflow at {uri} could not be filled: {why[:LONGEST_REASON]}"
    return None


if __name__ == "__main__":
    os.nice(NICENESS)
    root, store, name = sys.argv[1:]
    export_on_request(lambda: _try_export(Path(root), store, name), sys.stdin, sys.stdout)
