"""What a tracking server is told about a study and each of its launches. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from objectives import Measurement
from runners import Measured
from runners.environment import fingerprint
from tuner.clamps import clamps
from tuner.report.study_record import StudyRecord
from tuner.report.summary import Summary, is_finished, reason_of, state_of
from tuner.trial import Launch, Trial

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]

STUDY_ID, LAUNCH, PARENT = "tuner.study_id", "tuner.launch", "mlflow.parentRunId"
NOTE = "mlflow.note.content"
LONGEST = 5000  # characters of a tag or a parameter
EMULATED_NOTE = "EMULATED: no figure here is a measurement of real hardware."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """One run: everything but its files. Times are milliseconds since 1970."""

    name: str
    status: Status
    start_ms: int
    end_ms: int | None
    tags: Mapping[str, str]
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


def study_run(record: StudyRecord, summary: Summary) -> RunFacts:
    """Tell of the study as a whole: constants are tags, so that comparisons stay readable."""
    opened, closed = record.history.opened, record.history.closed
    ended = closed if closed is not None and is_finished(record.history) else None
    tags = {
        STUDY_ID: opened.study_id,
        "tuner.kind": "study",
        "verdict": summary.verdict,
        "maximize": record.objective.maximize,
        "limits": "; ".join(str(limit) for limit in record.limits),
        "model": record.file.engine.model,
        "tuner_version": opened.tuner_version,
        **_common(record),
    }
    if record.environment:
        tags["environment"] = fingerprint(record.environment)
    if summary.winner is not None:
        tags["winner"] = str(summary.winner.number)
    if record.emulated:
        tags[NOTE] = EMULATED_NOTE
    return RunFacts(
        name=f"[emulated] {record.name}" if record.emulated else record.name,
        status="RUNNING" if ended is None else "FINISHED",
        start_ms=milliseconds(opened.at),
        end_ms=None if ended is None else milliseconds(ended.at),
        tags=_short(tags),
    )


def launch_run(record: StudyRecord, launch: Launch, trial: Trial | None) -> RunFacts:
    """Tell of one launch; one that never ended has no figures."""
    state, status = _state(record, launch, trial)
    start_ms = milliseconds(record.history.launched_at[launch.number])
    numbers = {} if trial is None else _metrics(trial)
    finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
    tags = {
        "tuner.kind": "launch",
        LAUNCH: str(launch.number),
        "stage": launch.stage,
        "state": state,
        "fingerprint": launch.candidate.fingerprint,
        **_common(record),
        **({} if trial is None else _tags(trial)),
    }
    if dropped := sorted(set(numbers) - set(finite)):
        tags["infinite_metrics"] = ", ".join(dropped)
    if record.emulated:
        tags[NOTE] = EMULATED_NOTE
    return RunFacts(
        name=f"{launch.number:03d} {launch.stage}",
        status=status,
        start_ms=start_ms,
        end_ms=None if status == "RUNNING" else start_ms + _took_ms(trial),
        tags=_short(tags),
        params=_short(_params(launch, trial)),
        metrics=finite,
    )


def best_so_far(record: StudyRecord) -> dict[int, float]:
    """Return the best feasible value after each launch, from the first feasible one on."""
    series: dict[int, float] = {}
    best = -math.inf
    for trial in record.trials:
        if trial.feasible and trial.score is not None:
            best = max(best, trial.score.value)
        if math.isfinite(best):
            series[trial.number] = best
    return series


def milliseconds(at: str) -> int:
    """Return an ISO 8601 time as milliseconds since 1970; 0 when there is none."""
    return int(datetime.fromisoformat(at).timestamp() * 1000) if at else 0


def _state(record: StudyRecord, launch: Launch, trial: Trial | None) -> tuple[str, Status]:
    if trial is not None:
        return state_of(trial), "FINISHED" if isinstance(trial.outcome, Measured) else "FAILED"
    if launch in record.history.lost:
        return "lost", "KILLED"
    return ("dropped", "KILLED") if launch in record.history.dropped else ("on its way", "RUNNING")


def _tags(trial: Trial) -> dict[str, str]:
    tags = {"feasible": _feasible(trial)}
    reason = reason_of(trial)
    if reason is not None:
        tags["reason"] = reason
    if trial.score is not None and not trial.feasible:
        tags["reason"] = "; ".join(str(margin) for margin in trial.score.broken)
    if isinstance(trial.outcome, Measured) and trial.outcome.engine_version is not None:
        tags["engine_version"] = trial.outcome.engine_version
    if clamped := clamps(trial):
        tags["clamped"] = "; ".join(map(str, clamped))
    return tags


def _feasible(trial: Trial) -> str:
    """Say what is known: a machine's fault says nothing about the setting."""
    if state_of(trial) in {"faulted", "invalid"}:
        return "unknown"
    return str(trial.feasible).lower()


def _common(record: StudyRecord) -> dict[str, str]:
    return {
        "emulated": str(record.emulated).lower(),
        "workload_sha256": record.history.opened.workload_sha256,
        "ray": record.file.cluster.address,
    }


def _params(launch: Launch, trial: Trial | None) -> dict[str, str]:
    params = {name: str(value) for name, value in launch.candidate.items}
    if trial is not None and isinstance(trial.outcome, Measured):
        effective = trial.outcome.effective.items()
        params |= {f"effective.{name}": str(value) for name, value in effective}
    return params


def _metrics(trial: Trial) -> dict[str, float]:
    """Return the same keys for every launch that was measured, as far as it told them."""
    if not isinstance(trial.outcome, Measured) or trial.score is None:
        return {"slo_ok": 0.0} if state_of(trial) == "rejected" else {}
    measurement: Measurement = trial.outcome.measurement
    margins = {f"margin.{m.limit.metric}": m.relative for m in trial.score.margins}
    verdict = {"slo_ok": float(trial.feasible), "score": trial.score.value}
    return {**measurement.metrics(), **margins, **verdict}


def _took_ms(trial: Trial | None) -> int:
    return 0 if trial is None else int(trial.took_s * 1000)


def _short(texts: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
        for name, text in texts.items()
    }
