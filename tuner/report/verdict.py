"""The verdict in words: what was found, against the defaults, and what speaks against it."""

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
    broken_limit,
    listed,
    percent,
    unit,
    with_interval,
)
from tuner.trial import Trial

WATERMARK = "EMULATED: no figure here is a measurement of real hardware"


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


def _best(record: StudyRecord, summary: Summary) -> str:
    winner = summary.winner
    if winner is None:
        raise ValueError("a study found nothing without a winner")
    goal = goal_of(record, summary)
    figure = f"{with_interval(goal.winner, goal.winner_interval)} {unit(goal.metric)}".strip()
    says = f"launch {winner.number}, {figure} with every limit kept ({winner.candidate})."
    return f"{says} {_beside_baseline(summary, goal)}{_rivals(summary)}{_doubts(summary)}".strip()


def _beside_baseline(summary: Summary, goal: Comparison) -> str:
    baseline, winner = summary.baseline, summary.winner
    if baseline is None or goal.baseline is None or winner is None:
        return no_baseline(baseline)
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
    near, unsure = _limits_kept(summary.winner, surely=False), _open_limits(summary.winner)
    doubts = {
        f" Measured again, the same setting broke a limit (launch {listed(failed)}).": failed,
        f" The winner's interval reaches beyond the limit on {', '.join(near)}: "
        "not surely kept.": near,
        f" Too few requests to be sure of the limit on {', '.join(unsure)}.": unsure,
    }
    return "".join(says for says, found in doubts.items() if found)


def _limits_kept(winner: Trial | None, *, surely: bool | None) -> list[str]:
    measurement = measurement_of(winner)
    if winner is None or winner.score is None or measurement is None:
        return []
    margins = winner.score.margins
    return [m.limit.metric for m in margins if surely_kept(m, measurement) is surely]


def _open_limits(winner: Trial | None) -> list[str]:
    measurement = measurement_of(winner)
    intervals = {} if measurement is None else measurement.intervals
    return [metric for metric in _limits_kept(winner, surely=None) if metric in intervals]


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


def no_baseline(baseline: Trial | None) -> str:
    """Say why there is nothing to compare with."""
    if baseline is None:
        return "The engine's defaults were not tried."
    return f"The engine's defaults gave no figure ({state_of(baseline)}: {reason_of(baseline)})."


def goal_of(record: StudyRecord, summary: Summary) -> Comparison:
    """Return the comparison of the metric that was to be as high as possible."""
    return next(c for c in summary.comparisons if is_goal(c, record))


def is_goal(comparison: Comparison, record: StudyRecord) -> bool:
    """Say whether this is the metric that was to be as high as possible."""
    return comparison.metric == record.objective.maximize
