"""The order of the report: the verdict, what it means, how it came about, what it rests on."""

from collections.abc import Iterator
from pathlib import Path

from tuner.report.conclusions import (
    command_section,
    comparison_section,
    decisions_section,
    margins_section,
)
from tuner.report.evidence import (
    definitions_section,
    environment_section,
    failures_section,
    health_section,
    trials_section,
)
from tuner.report.latencies import Latencies
from tuner.report.latency_plots import PANELS, plot_share_below, plot_spread
from tuner.report.page import Page, Pictures, Section
from tuner.report.study_record import StudyRecord
from tuner.report.summary import Summary
from tuner.report.trial_plots import picture_title, plot_knobs, plot_time_line, plot_trade_off
from tuner.report.verdict import verdict_sentence, watermark


def contents(record: StudyRecord, summary: Summary, plots: Path) -> Page:
    """Return the page; its pictures are drawn into the folder *plots*."""
    sections = (
        comparison_section(record, summary),
        margins_section(summary),
        command_section(record, summary),
        decisions_section(record, summary),
        Section("Latencies of single requests", tuple(_latencies(record, summary, plots))),
        *_pictures_of_trials(record, summary, plots),
        trials_section(record, summary),
        failures_section(summary),
        health_section(summary),
        environment_section(record),
        definitions_section(),
    )
    ended = len(record.trials)
    return Page(
        title=f"Study {record.name}",
        watermark=watermark(record),
        verdict=verdict_sentence(record, summary),
        subtitle=f"Most {record.objective.maximize} with "
        + " and ".join(str(limit) for limit in record.limits)
        + f"; {ended} launches ended.",
        sections=tuple(section for section in sections if section.blocks),
    )


def _pictures_of_trials(record: StudyRecord, summary: Summary, plots: Path) -> Iterator[Section]:
    if summary.shown is not None:
        trade_off = plot_trade_off(record, summary, plots)
        yield Section("Throughput against latency", (Pictures(tuple(trade_off)),))
        knobs = plot_knobs(record, summary, plots)
        yield Section("What each knob did", (Pictures(tuple(knobs)),))
    if record.trials:
        yield Section("Time line", (Pictures((plot_time_line(record, plots),)),))


def _latencies(record: StudyRecord, summary: Summary, plots: Path) -> Iterator[Pictures]:
    launches = _compared(record, summary)
    for draw in (plot_spread, plot_share_below) if launches else ():
        yield Pictures(
            tuple(
                draw(launches, record.limits, family, plots, title=picture_title(record))
                for family in PANELS
            )
        )


def _compared(record: StudyRecord, summary: Summary) -> dict[str, Latencies]:
    who = "winner" if summary.winner is not None else "nearest"
    named = (("engine defaults", summary.baseline), (who, summary.shown))
    found: dict[str, Latencies] = {}
    seen: set[int] = set()
    for name, trial in named:
        if trial is None or trial.number in seen:
            continue
        seen.add(trial.number)
        latencies = record.latencies(trial.number)
        if latencies is not None:
            found[f"{name} (launch {trial.number})"] = latencies
    return found
