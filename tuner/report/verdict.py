"""The verdict in words, and what stands right behind it: comparison, margins, command, choice."""

from objectives import Margin
from search_spaces import sglang
from tuner.report.page import Block, Code, Paragraph, Section, Table
from tuner.report.study_record import StudyRecord
from tuner.report.summary import (
    Comparison,
    Summary,
    measurement_of,
    reason_of,
    state_of,
    surely_kept,
)
from tuner.report.words import (
    ABSENT,
    broken_limit,
    listed,
    number,
    percent,
    unit,
    with_interval,
    with_unit,
)
from tuner.trial import Trial

WATERMARK = "EMULATED: no figure here is a measurement of real hardware"
STANDINGS = {
    "better": "better",
    "worse": "worse",
    "tie": "tie",
    "not known": "no interval",
}


def watermark(record: StudyRecord) -> str | None:
    """Return what must stand over every figure of an emulated study."""
    return WATERMARK if record.emulated else None


def verdict_sentence(record: StudyRecord, summary: Summary) -> str:
    """Say what the study found, in one or two sentences that claim no more than it did."""
    match summary.verdict:
        case "found":
            return f"Found: {_best(record, summary)}"
        case "infeasible":
            return f"No setting kept every limit: there is no winner. {_nearest(summary)}"
        case "nothing ran":
            return f"Nothing ran, so there is no winner. {_first_reason(summary)}".strip()
        case "unfinished":
            return _unfinished(record, summary)


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
    first = next((i for i, c in enumerate(summary.comparisons) if _is_goal(c, record)), None)
    blocks: tuple[Block, ...] = (
        Table(head, rows, emphasised=first),
        Paragraph(_about_intervals()),
    )
    if baseline is None or measurement_of(baseline) is None:
        blocks = (Paragraph(_no_baseline(baseline)), *blocks)
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


def _best(record: StudyRecord, summary: Summary) -> str:
    winner = summary.winner
    if winner is None:
        raise ValueError("a study found nothing without a winner")
    goal = _goal(record, summary)
    figure = f"{with_interval(goal.winner, goal.winner_interval)} {unit(goal.metric)}".strip()
    says = f"launch {winner.number}, {figure} with every limit kept ({winner.candidate})."
    return f"{says} {_beside_baseline(summary, goal)}{_rivals(summary)}{_doubts(summary)}".strip()


def _beside_baseline(summary: Summary, goal: Comparison) -> str:
    baseline, winner = summary.baseline, summary.winner
    if baseline is None or goal.baseline is None or winner is None:
        return _no_baseline(baseline)
    if baseline.number == winner.number:
        return "It is the engine's own defaults: nothing that was tried did better."
    theirs = f"{with_interval(goal.baseline, goal.baseline_interval)} {unit(goal.metric)}".strip()
    if not baseline.feasible and baseline.score is not None:
        broken = "; ".join(broken_limit(margin) for margin in baseline.score.broken)
        return f"The engine's defaults break the limits: {theirs}, and {broken}."
    match goal.standing:
        case "better" | "worse":
            return f"That is {percent(goal.change)} against the engine's defaults ({theirs})."
        case "tie":
            return f"That is a tie with the engine's defaults ({theirs}): the intervals overlap."
        case "not known":
            return (
                f"That is {percent(goal.change)} against the engine's defaults ({theirs}), "
                "without intervals to tell whether it is chance."
            )


def _rivals(summary: Summary) -> str:
    if not summary.rivals:
        return ""
    numbers = listed([trial.number for trial in summary.rivals])
    return f" Not told apart from it by its throughput: launch {numbers}."


def _doubts(summary: Summary) -> str:
    failed = [t.number for t in summary.again if t.score is not None and not t.feasible]
    doubts = f" Measured again, the same setting broke a limit (launch {listed(failed)})."
    close = _close_limits(summary.winner)
    near = (
        f" The winner's interval reaches beyond the limit on {', '.join(close)}: not surely kept."
    )
    return (doubts if failed else "") + (near if close else "")


def _close_limits(winner: Trial | None) -> list[str]:
    measurement = measurement_of(winner)
    if winner is None or winner.score is None or measurement is None:
        return []
    margins = winner.score.margins
    return [m.limit.metric for m in margins if surely_kept(m, measurement) is False]


def _nearest(summary: Summary) -> str:
    nearest = summary.nearest
    if nearest is None or nearest.score is None:
        return ""
    broken = "; ".join(broken_limit(margin) for margin in nearest.score.broken)
    return (
        f"The nearest is launch {nearest.number} ({nearest.candidate}): {broken}. "
        "It is no recommendation."
    )


def _unfinished(record: StudyRecord, summary: Summary) -> str:
    ended, closed = len(record.trials), record.history.closed
    why = f" It stopped: {closed.reason}." if closed is not None and closed.reason else ""
    says = f"The study is not finished: {ended} launches ended so far.{why}"
    if summary.winner is not None:
        return f"{says} Best so far: {_best(record, summary)}"
    if summary.nearest is not None:
        return f"{says} No setting kept every limit yet. {_nearest(summary)}"
    return f"{says} Nothing was measured yet. {_first_reason(summary)}".strip()


def _first_reason(summary: Summary) -> str:
    if not summary.failures:
        return ""
    first = summary.failures[0]
    return f"Launch {listed(first.numbers)}: {first.state}: {first.reason}"


def _no_baseline(baseline: Trial | None) -> str:
    if baseline is None:
        return "The engine's defaults were not tried."
    return f"The engine's defaults gave no figure ({state_of(baseline)}: {reason_of(baseline)})."


def _about_intervals() -> str:
    return (
        "In brackets: the interval of each figure within its launch (95 % unless noted). A "
        "difference inside the intervals is called a tie."
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
        {None: "no interval", True: "yes", False: "no"}[sure],
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


def _goal(record: StudyRecord, summary: Summary) -> Comparison:
    return next(c for c in summary.comparisons if _is_goal(c, record))


def _is_goal(comparison: Comparison, record: StudyRecord) -> bool:
    return comparison.metric == record.objective.maximize
