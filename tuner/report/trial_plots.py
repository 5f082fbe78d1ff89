"""Plots over all trials: each knob against what users feel, and throughput against latency."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from objectives import Limit
from runners import Measured
from search_spaces import FloatRange, IntRange, Value
from tuner.report.canvas import INK, LIMIT, PALE, SMALL, WIDE, canvas, legend_below
from tuner.report.page import Picture
from tuner.report.study_record import StudyRecord
from tuner.report.summary import Summary, measurement_of, state_of
from tuner.report.words import label, with_unit
from tuner.trial import Trial

FAMILIES = ("ttft", "tpot", "e2e")
ALWAYS = ("ttft_p95_ms", "tpot_p95_ms")
STATES: dict[str, dict[str, Any]] = {
    "feasible": {"marker": "o", "color": INK, "label": "keeps the limits"},
    "infeasible": {
        "marker": "o",
        "facecolors": "white",
        "edgecolors": PALE,
        "linewidths": 1.3,
        "label": "breaks a limit",
    },
    "rejected": {"marker": "x", "color": "black", "label": "rejected (no figure)"},
}
HATCHES = {
    "feasible": ("", INK),
    "infeasible": ("///", "white"),
    "rejected": ("xxx", "white"),
    "faulted": ("...", "white"),
    "invalid": ("|||", "white"),
}


@dataclass(frozen=True, slots=True)
class Point:
    """A trial on a plot; *y* is None when it has no figure."""

    x: float
    y: float | None
    trial: Trial


def latency_metrics(limits: Sequence[Limit]) -> tuple[str, ...]:
    """Return the latencies worth plotting: p95 of TTFT and TPOT, or what is limited instead."""
    limited = [limit.metric for limit in limits if limit.metric.startswith(FAMILIES)]
    others = [m for m in ALWAYS if not any(lim.startswith(m[:4]) for lim in limited)]
    return tuple(sorted({*limited, *others}, key=lambda m: (m[:4] == "tpot", m)))


def picture_title(record: StudyRecord) -> str | None:
    """Return what must stand over a picture that leaves its report: that it is emulated."""
    return "EMULATED, not a measurement of real hardware" if record.emulated else None


def plot_knobs(record: StudyRecord, summary: Summary, folder: Path) -> list[Picture]:
    """Draw every plotted metric against every knob."""
    metrics = (record.objective.maximize, *latency_metrics(record.limits))
    return [
        _plot_knob(record, summary, knob, metric, folder)
        for knob in record.file.search.knobs
        for metric in metrics
    ]


def plot_trade_off(record: StudyRecord, summary: Summary, folder: Path) -> list[Picture]:
    """Draw throughput against each latency, with the limit."""
    return [
        _plot_trade_off(record, summary, metric, folder)
        for metric in latency_metrics(record.limits)
    ]


def plot_time_line(record: StudyRecord, folder: Path) -> Picture:
    """Draw how long each launch took, and what came of it."""
    path = folder / "time_line.png"
    with canvas(path, WIDE, title=picture_title(record)) as (axes,):
        for state, (hatch, colour) in HATCHES.items():
            trials = [t for t in record.trials if state_of(t) == state]
            if trials:
                axes.bar(
                    [t.number for t in trials],
                    [t.took_s / 60 for t in trials],
                    hatch=hatch,
                    facecolor=colour,
                    edgecolor=INK,
                    label=state,
                )
        axes.set(xlabel="launch", ylabel="wall clock (min)")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(visible=False, axis="x")
        legend_below([axes], columns=5)
    return Picture(path, "How long each launch took, start-up included, by what came of it.")


def known_value(trial: Trial, knob: str) -> Value | None:
    """Return what *knob* really was: the engine's word first, then what was asked."""
    if isinstance(trial.outcome, Measured) and knob in trial.outcome.effective:
        return trial.outcome.effective[knob]
    return trial.candidate.values().get(knob)


def _plot_knob(
    record: StudyRecord, summary: Summary, knob: str, metric: str, folder: Path
) -> Picture:
    path = folder / f"{_file_part(metric)}_by_{_file_part(knob)}.png"
    known = [(trial, v) for trial in record.trials if (v := known_value(trial, knob)) is not None]
    order = _order(record, knob, [value for _, value in known])
    points = [
        Point(order.index(v) if order else float(v), _figure(trial, metric), trial)
        for trial, v in known
    ]
    with canvas(path, SMALL, title=picture_title(record)) as (axes,):
        _scatter(axes, points, summary)
        _limit_line(axes, record.limits, metric, across=True)
        if order:
            axes.set_xticks(range(len(order)), [str(value) for value in order])
            axes.set_xlim(-0.5, len(order) - 0.5)
        elif _is_log(record, knob):
            axes.set_xscale("log", base=2)
        axes.set(xlabel=knob, ylabel=with_unit(metric))
        legend_below([axes])
    return Picture(path, f"{label(metric)} against {knob}, as the engine ran it.")


def _plot_trade_off(record: StudyRecord, summary: Summary, metric: str, folder: Path) -> Picture:
    maximize = record.objective.maximize
    path = folder / f"{_file_part(maximize)}_by_{_file_part(metric)}.png"
    points = [
        Point(x, _figure(trial, maximize), trial)
        for trial in record.trials
        if (x := _figure(trial, metric)) is not None and math.isfinite(x)
    ]
    with canvas(path, SMALL, title=picture_title(record)) as (axes,):
        _scatter(axes, points, summary)
        _limit_line(axes, record.limits, metric, across=False)
        axes.set(xlabel=with_unit(metric), ylabel=with_unit(maximize))
        axes.set_xlim(left=0)
        legend_below([axes])
    return Picture(path, f"{label(maximize)} against {label(metric)}, one mark a launch.")


def _scatter(axes: Any, points: Sequence[Point], summary: Summary) -> None:
    finite = [p for p in points if p.y is not None and math.isfinite(p.y)]
    for state, style in STATES.items():
        mine = [p for p in finite if state_of(p.trial) == state]
        if mine:
            axes.scatter([p.x for p in mine], [p.y for p in mine], s=26, zorder=3, **style)
    edge = axes.get_xaxis_transform()
    rejected = [p.x for p in points if state_of(p.trial) == "rejected"]
    if rejected:
        axes.scatter(rejected, [0.02] * len(rejected), s=26, transform=edge, **STATES["rejected"])
    endless = [p.x for p in points if p.y is not None and math.isinf(p.y)]
    if endless:
        mark = {"marker": "^", "color": PALE, "label": "infinite (timed out)"}
        axes.scatter(endless, [0.98] * len(endless), s=30, transform=edge, **mark)
    axes.update_datalim([(p.x, 0.0) for p in points])
    axes.margins(0.08)
    axes.set_ylim(bottom=0)
    _ring(axes, finite, summary.baseline, marker="s", size=90, label="engine defaults")
    _ring(axes, finite, summary.winner, marker="*", size=230, label="winner")


def _ring(
    axes: Any, points: Sequence[Point], trial: Trial | None, *, marker: str, size: int, label: str
) -> None:
    mine = [p for p in points if trial is not None and p.trial.number == trial.number]
    if mine:
        axes.scatter(
            [p.x for p in mine],
            [p.y for p in mine],
            s=size,
            marker=marker,
            facecolors="none",
            edgecolors="black",
            linewidths=1.2,
            zorder=4,
            label=label,
        )


def _limit_line(axes: Any, limits: Sequence[Limit], metric: str, *, across: bool) -> None:
    draw = axes.axhline if across else axes.axvline
    for limit in limits:
        if limit.metric == metric:
            draw(limit.bound, color=LIMIT, linestyle="--", linewidth=1.2, label="limit")


def _order(record: StudyRecord, knob: str, found: Sequence[Value]) -> list[Value]:
    """Return the places of a knob that has no scale; empty for a knob that has one."""
    parameter = record.file.space()[knob]
    if isinstance(parameter, IntRange | FloatRange):
        return []
    others = sorted({v for v in found if v not in parameter.values}, key=str)
    return [*parameter.values, *others]


def _is_log(record: StudyRecord, knob: str) -> bool:
    parameter = record.file.space()[knob]
    return isinstance(parameter, IntRange | FloatRange) and parameter.log


def _figure(trial: Trial, metric: str) -> float | None:
    measurement = measurement_of(trial)
    return None if measurement is None else measurement.metric(metric)


def _file_part(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
