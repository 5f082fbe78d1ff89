"""The report for machines."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from runners import Measured
from runners.environment import fingerprint
from search_spaces import sglang
from tuner.report.evidence import changed_settings
from tuner.report.study_record import StudyRecord
from tuner.report.summary import Summary, measurement_of, reason_of, state_of
from tuner.report.verdict import verdict_sentence, watermark
from tuner.trial import Trial


def to_json(record: StudyRecord, summary: Summary) -> dict[str, Any]:
    """Return plain data; an infinite value is written "inf", an absent one null."""
    history = record.history
    found: dict[str, Any] = {
        "study": record.name,
        "study_id": history.opened.study_id,
        "verdict": summary.verdict,
        "says": verdict_sentence(record, summary),
        "emulated": record.emulated,
        "watermark": watermark(record),
        "closed": None if history.closed is None else asdict(history.closed),
        "maximize": record.objective.maximize,
        "limits": [asdict(limit) for limit in record.limits],
        "workload_sha256": history.opened.workload_sha256,
        "environment_fingerprint": _fingerprint(record),
        "winner": _chosen(record, summary.winner),
        "nearest": None if summary.nearest is None else trial_json(summary.nearest),
        "baseline": None if summary.baseline is None else trial_json(summary.baseline),
        "winner_measured_again": [trial.number for trial in summary.again],
        "not_told_apart_from_winner": [trial.number for trial in summary.rivals],
        "comparison": [
            {**asdict(c), "change": c.change, "standing": c.standing} for c in summary.comparisons
        ],
        "decisions": [asdict(decision) for decision in summary.decisions],
        "failures": [asdict(failure) for failure in summary.failures],
        "trials": [trial_json(trial) for trial in record.trials],
        "lost": [launch.number for launch in history.lost],
        "dropped": [launch.number for launch in history.dropped],
        "pending": [launch.number for launch in history.pending],
    }
    plain: dict[str, Any] = without_infinity(found)
    return plain


def trial_json(trial: Trial) -> dict[str, Any]:
    """Return one trial as plain data."""
    outcome, measurement = trial.outcome, measurement_of(trial)
    effective = dict(outcome.effective) if isinstance(outcome, Measured) else None
    return {
        "number": trial.number,
        "stage": trial.stage,
        "candidate": trial.candidate.values(),
        "fingerprint": trial.candidate.fingerprint,
        "state": state_of(trial),
        "feasible": trial.feasible,
        "reason": reason_of(trial),
        "started_at": trial.started_at,
        "took_s": trial.took_s,
        "value": None if trial.score is None else trial.score.value,
        "margins": None
        if trial.score is None
        else {m.limit.metric: m.relative for m in trial.score.margins},
        "effective": effective,
        "changed": changed_settings(trial),
        "engine_version": outcome.engine_version if isinstance(outcome, Measured) else None,
        "metrics": None if measurement is None else measurement.metrics(),
        "intervals": None
        if measurement is None
        else {name: asdict(interval) for name, interval in measurement.intervals.items()},
        "request_failures": None if measurement is None else dict(measurement.failures),
    }


def _chosen(record: StudyRecord, winner: Trial | None) -> dict[str, Any] | None:
    if winner is None:
        return None
    flags = sglang.flags(winner.candidate)
    return {**trial_json(winner), "flags": flags, "command": record.command(winner.number)}


def _fingerprint(record: StudyRecord) -> str | None:
    return fingerprint(record.environment) if record.environment else None


def without_infinity(value: Any) -> Any:
    """Return plain data that every reader of JSON takes: an infinite number becomes "inf"."""
    if isinstance(value, Mapping):
        return {key: without_infinity(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinity(inner) for inner in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value
