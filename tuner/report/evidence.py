"""What the verdict rests on: every trial, why some failed, the health of the measurement."""

from collections.abc import Iterator, Mapping
from typing import Any

from runners.effective import differences
from runners.environment import fingerprint
from runners.outcome import Measured
from tuner.report.page import Listing, Paragraph, Section, Table
from tuner.report.study_record import StudyRecord
from tuner.report.summary import Summary, measurement_of, reason_of, state_of
from tuner.report.words import (
    ABSENT,
    DEFINITIONS,
    broken_limit,
    label,
    listed,
    number,
    percent,
    seconds,
    with_unit,
)
from tuner.trial import Launch, Trial

HEALTH = (
    "warmup_requests",
    "measured_requests",
    "window_s",
    "failed_requests",
    "prefix_cache_hit_rate",
    "retractions",
    "achieved_concurrency",
    "client_cpu_share",
    "client_loop_lag_p99_ms",
    "queued_peak",
    "kv_usage_peak",
    "gpu_memory_peak_gib",
    "gpu_sm_clock_mean_mhz",
    "gpu_power_mean_w",
    "gpu_temperature_max_c",
    "startup_s",
)


def trials_section(record: StudyRecord, summary: Summary) -> Section:
    """List every launch with its setting, its figure, and how it stood to the limits."""
    limited = [limit.metric for limit in record.limits if limit.metric != "failed_share"]
    head = (
        *("launch", "stage", "outcome", with_unit(record.objective.maximize)),
        *(*(f"{label(m)} margin" for m in limited), *record.file.search.knobs),
        *("took", "remarks"),
    )
    rows = tuple(_row(record, launch, trial, limited) for launch, trial in record.launches())
    numbers = [launch.number for launch, _ in record.launches()]
    shown = summary.winner
    mark = numbers.index(shown.number) if shown is not None else None
    table = Table(head, rows, emphasised=mark, wrapped=(len(head) - 1,))
    text = "An empty knob was left to the engine. A margin below 0 % keeps the limit."
    return Section("All launches", (Paragraph(text), table) if rows else ())


def failures_section(summary: Summary) -> Section:
    """Say why the others did not win for want of a figure or of a kept limit."""
    rows = tuple(
        (f.state, str(len(f.numbers)), listed(f.numbers), f.reason) for f in summary.failures
    )
    head = ("outcome", "launches", "numbers", "reason")
    return Section("Why others failed", (Table(head, rows, wrapped=(3,)),) if rows else ())


def health_section(summary: Summary) -> Section:
    """Show what speaks for and against trusting the figures of the two launches compared."""
    baseline, shown = measurement_of(summary.baseline), measurement_of(summary.shown)
    if shown is None:
        return Section("Health of the measurement", ())
    pairs = [
        (metric, None if baseline is None else baseline.metric(metric), shown.metric(metric))
        for metric in HEALTH
    ]
    who = "winner" if summary.winner is not None else "nearest"
    rows = [(with_unit(m), number(a), number(b)) for m, a, b in pairs if (a, b) != (None, None)]
    kinds = sorted({*shown.failures, *({} if baseline is None else baseline.failures)})
    rows += [
        (
            f"failures: {kind}",
            ABSENT if baseline is None else str(baseline.failures.get(kind, 0)),
            str(shown.failures.get(kind, 0)),
        )
        for kind in kinds
    ]
    return Section("Health of the measurement", (Table(("", "defaults", who), tuple(rows)),))


def environment_section(record: StudyRecord) -> Section:
    """Say on what the study ran, and with which traffic."""
    engine, load = record.file.engine, record.file.workload.load
    shapes = "; ".join(
        f"{shape.input_tokens} tokens in, {shape.output_tokens} out"
        for shape in record.file.workload.all_shapes()
    )
    opened = record.history.opened
    items = [
        f"Engine: {engine.kind}, model {engine.model}" + _version(record),
        f"Workload: {shapes}; {load.concurrency} requests in flight, {load.rounds} measured "
        f"rounds each after {load.warmup_rounds} of warm-up",
        f"Workload SHA-256: {opened.workload_sha256}",
        f"Share of prompt tokens that an endless prefix cache would find: "
        f"{opened.prefix_sharing:.1%}".replace("%", " %"),
        f"Study {opened.study_id}, opened {opened.at}, tuner {opened.tuner_version}",
        *_machine(record.environment),
    ]
    return Section("What it ran on", (Listing(tuple(items)),))


def definitions_section() -> Section:
    """Define every figure."""
    return Section("Definitions", (Listing(tuple(f"{k}: {v}." for k, v in DEFINITIONS)),))


def remarks(trial: Trial) -> str:
    """Say why a trial failed, or which settings came out otherwise than asked."""
    if trial.score is None:
        return reason_of(trial) or ""
    broken = [broken_limit(margin) for margin in trial.score.broken]
    return "; ".join([*broken, *changed_settings(trial)])


def changed_settings(trial: Trial) -> list[str]:
    """Name the knobs that the engine ran otherwise than it was asked to."""
    if not isinstance(trial.outcome, Measured):
        return []
    changed = differences(trial.candidate, trial.outcome.effective)
    return [
        f"{name}: asked {ends['requested']}, ran {ends['effective']}"
        for name, ends in changed.items()
        if ends["effective"] is not None
    ]


def _row(
    record: StudyRecord, launch: Launch, trial: Trial | None, limited: list[str]
) -> tuple[str, ...]:
    values = launch.candidate.values()
    knobs = tuple(str(values.get(name, "")) for name in record.file.search.knobs)
    start = (str(launch.number), launch.stage)
    if trial is None:
        state = _unended(record, launch)
        return (*start, state, *([ABSENT] * (1 + len(limited))), *knobs, ABSENT, "")
    goal = measurement_of(trial)
    figure = number(None if goal is None else goal.metric(record.objective.maximize))
    margins = {} if trial.score is None else {m.limit.metric: m for m in trial.score.margins}
    cells = (
        percent(margins[m].relative) if m in margins and margins[m].value is not None else ABSENT
        for m in limited
    )
    end = (*knobs, seconds(trial.took_s), remarks(trial))
    return (*start, state_of(trial), figure, *cells, *end)


def _unended(record: StudyRecord, launch: Launch) -> str:
    if launch in record.history.lost:
        return "lost"
    return "dropped" if launch in record.history.dropped else "on its way"


def _version(record: StudyRecord) -> str:
    versions = sorted(
        {
            trial.outcome.engine_version
            for trial in record.trials
            if isinstance(trial.outcome, Measured) and trial.outcome.engine_version is not None
        }
    )
    return f", version {', '.join(versions)}" if versions else ""


def _machine(taken: Mapping[str, Any]) -> Iterator[str]:
    if not taken:
        yield "No snapshot of the environment was found"
        return
    yield f"Environment fingerprint: {fingerprint(taken)}, taken {taken.get('taken_at')}"
    machine = taken.get("machine") or {}
    yield (
        f"Machine: {machine.get('cpu')}, {machine.get('cpus')} CPUs, "
        f"{machine.get('memory_gib')} GiB, kernel {machine.get('kernel')}"
    )
    for gpu in taken.get("gpus") or ():
        yield (
            f"GPU {gpu.get('index')}: {gpu.get('name')}, {gpu.get('memory_total_mib')} MiB, "
            f"driver {gpu.get('driver')}"
        )
    if not taken.get("gpus"):
        yield "No GPU was seen"
