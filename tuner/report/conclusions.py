"""What stands right behind the verdict: comparison, margins, command, and how it was chosen."""

from objectives import Margin
from search_spaces import sglang
from tuner.report.page import Block, Code, Paragraph, Section, Table
from tuner.report.study_record import StudyRecord
from tuner.report.summary import (
    Comparison,
    Summary,
    measurement_of,
    state_of,
    surely_kept,
)
from tuner.report.verdict import is_goal, no_baseline
from tuner.report.words import (
    ABSENT,
    number,
    percent,
    with_interval,
    with_unit,
)
from tuner.trial import Trial

STANDINGS = {
    "better": "better",
    "worse": "worse",
    "tie": "tie",
    "not known": "cannot tell",
}


def comparison_section(record: StudyRecord, summary: Summary) -> Section:
    """Set the winner (or the nearest) beside the engine's defaults."""
    shown, baseline = summary.shown, summary.baseline
    if shown is None or measurement_of(shown) is None:
        return Section("Comparison", ())
    who = "winner" if summary.winner else "nearest (breaks a limit)"
    if baseline is not None and shown.number == baseline.number:
        text = f"The {who} is the engine's own defaults; there is nothing to compare them with."
        return Section("Comparison", (Paragraph(text), _alone(summary, who)))
    head = ("metric", "engine defaults", who, "change", "verdict")
    rows = tuple(_comparison_row(c) for c in summary.comparisons)
    first = next((i for i, c in enumerate(summary.comparisons) if is_goal(c, record)), None)
    blocks: tuple[Block, ...] = (
        Table(head, rows, emphasised=first),
        Paragraph(_about_intervals()),
    )
    if baseline is None or measurement_of(baseline) is None:
        blocks = (Paragraph(no_baseline(baseline)), *blocks)
    return Section(f"Engine defaults and {who.split(' ', maxsplit=1)[0]}", blocks)


def margins_section(summary: Summary) -> Section:
    """Say how far the shown trial is from each limit."""
    shown = summary.shown
    if shown is None or shown.score is None:
        return Section("Margins to the limits", ())
    head = ("limit", "measured", "margin", "kept", "by the whole interval")
    rows = tuple(_margin_row(margin, shown) for margin in shown.score.margins)
    return Section(f"Margins to the limits (launch {shown.number})", (Table(head, rows),))


def command_section(record: StudyRecord, summary: Summary) -> Section:
    """Give the command that starts the winner; nothing is offered without a winner."""
    winner = summary.winner
    if winner is None:
        return Section("Launch command", ())
    command = record.command(winner.number)
    if command is not None:
        return Section("Launch command of the winner", (Code(command),))
    flags = " ".join(sglang.flags(winner.candidate)) or "(the engine's defaults)"
    text = "The launch left no launch.txt; these are the flags the tuner set:"
    return Section("Launch command of the winner", (Paragraph(text), Code(flags)))


def decisions_section(record: StudyRecord, summary: Summary) -> Section:
    """Say what each stage settled, from which trials; a tie is called a tie."""
    blocks: list[Block] = []
    for decision in summary.decisions:
        settled = ", ".join(f"{k} = {v}" for k, v in decision.values.items()) or "nothing"
        blocks.append(Paragraph(f"Stage {decision.stage}: {settled} ({decision.because})."))
        trials = [t for t in record.trials if t.stage == decision.stage]
        if trials and len(decision.values) == 1:
            blocks.append(_stage_table(next(iter(decision.values)), trials, record))
    return Section("How the setting was chosen", tuple(blocks))


def _about_intervals() -> str:
    return (
        "In brackets: the interval of each figure within its launch (95 % unless noted). A "
        "difference inside the intervals is called a tie. A question mark is an end that so few "
        "requests leave open; nothing can be told without both ends."
    )


def _alone(summary: Summary, who: str) -> Table:
    rows = tuple(
        (with_unit(c.metric), with_interval(c.winner, c.winner_interval))
        for c in summary.comparisons
    )
    return Table(("metric", who), rows)


def _comparison_row(comparison: Comparison) -> tuple[str, ...]:
    return (
        with_unit(comparison.metric),
        with_interval(comparison.baseline, comparison.baseline_interval),
        with_interval(comparison.winner, comparison.winner_interval),
        percent(comparison.change),
        STANDINGS[comparison.standing],
    )


def _margin_row(margin: Margin, trial: Trial) -> tuple[str, ...]:
    measurement = measurement_of(trial)
    sure = None if measurement is None else surely_kept(margin, measurement)
    return (
        str(margin.limit),
        number(margin.value),
        percent(margin.relative) if margin.value is not None else ABSENT,
        "yes" if margin.kept else "NO",
        {None: "cannot tell", True: "yes", False: "no"}[sure],
    )


def _stage_table(knob: str, trials: list[Trial], record: StudyRecord) -> Table:
    metric = record.objective.maximize
    limited = [limit.metric for limit in record.limits if limit.metric != "failed_share"]
    head = ("launch", knob, with_unit(metric), *(with_unit(m) for m in limited), "outcome")
    return Table(head, tuple(_stage_row(t, knob, (metric, *limited)) for t in trials))


def _stage_row(trial: Trial, knob: str, metrics: tuple[str, ...]) -> tuple[str, ...]:
    measurement = measurement_of(trial)
    value = trial.candidate.values().get(knob, ABSENT)
    figures = (
        ABSENT
        if measurement is None
        else with_interval(measurement.metric(m), measurement.intervals.get(m))
        for m in metrics
    )
    return (str(trial.number), str(value), *figures, state_of(trial))
