"""What a study's trials add up to: the verdict, the winner, and how sure we are. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from objectives import Interval, Margin, Measurement
from runners import Faulted, Invalid, Measured, Rejected
from tuner.journal import History
from tuner.plan import BASELINE
from tuner.ranking import tied
from tuner.stages import Decision
from tuner.study import Study
from tuner.trial import Trial

Verdict = Literal["found", "infeasible", "nothing ran", "unfinished"]
Standing = Literal["better", "worse", "tie", "not known"]

STOPPED_EARLY = ("interrupted", "faulted")  # how a study closes that is to be taken up again
HIGHER_IS_BETTER = ("output_tokens_per_s", "requests_per_s")
COMPARED = (
    *HIGHER_IS_BETTER,
    "ttft_p50_ms",
    "ttft_p95_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "tpot_p95_ms",
    "tpot_p99_ms",
    "e2e_p50_ms",
    "e2e_p95_ms",
    "e2e_p99_ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One metric of the winner beside the baseline's; *change* is relative to the baseline."""

    metric: str
    baseline: float | None
    winner: float | None
    baseline_interval: Interval | None = None
    winner_interval: Interval | None = None

    @property
    def change(self) -> float | None:
        """How much the winner's value is above the baseline's, as a share of it."""
        if self.baseline is None or self.winner is None or self.baseline == 0:
            return None
        if float("inf") in (self.baseline, self.winner):
            return None
        return self.winner / self.baseline - 1

    @property
    def standing(self) -> Standing:
        """How the winner stands; a difference inside the intervals is a tie, not a gain.

        An interval with an open end that matters leaves it not known.
        """
        if self.baseline is None or self.winner is None:
            return "not known"
        if self.baseline == self.winner:
            return "tie"
        one, other = self.baseline_interval, self.winner_interval
        if one is None or other is None:
            return "not known"
        if overlap(one, other):
            return "not known" if None in (one.low, one.high, other.low, other.high) else "tie"
        return "better" if (self.winner > self.baseline) == self._higher_is_better else "worse"

    @property
    def _higher_is_better(self) -> bool:
        return self.metric in HIGHER_IS_BETTER or not self.metric.endswith("_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureClass:
    """Launches that ended the same way for the same reason."""

    state: str
    reason: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the report says, before it is put into words."""

    verdict: Verdict
    winner: Trial | None  # keeps every limit; never set otherwise
    baseline: Trial | None
    nearest: Trial | None  # when nothing keeps the limits: what breaks them least
    again: tuple[Trial, ...]  # other measurements of the winner's setting
    rivals: tuple[Trial, ...]  # feasible ones of other settings, not told apart from the winner
    comparisons: tuple[Comparison, ...]
    decisions: tuple[Decision, ...]
    failures: tuple[FailureClass, ...]

    @property
    def shown(self) -> Trial | None:
        """The trial that the report looks at closely: the winner or, failing that, the nearest."""
        return self.winner or self.nearest


def summarize(study: Study, history: History, maximize: str) -> Summary:
    """Sort out what *study* found; *maximize* is the metric that was to be as high as possible."""
    winner, baseline = study.best(), baseline_of(study.trials)
    again = () if winner is None else _again(study.trials, winner)
    return Summary(
        verdict=verdict_of(study, history),
        winner=winner,
        baseline=baseline,
        nearest=study.nearest() if winner is None else None,
        again=again,
        rivals=() if winner is None else _rivals(study.trials, winner),
        comparisons=compare(baseline, winner or study.nearest(), maximize),
        decisions=study.decisions(),
        failures=failure_classes(study, history),
    )


def verdict_of(study: Study, history: History) -> Verdict:
    """Return the verdict; a study that may go on has none yet."""
    faulted = history.closed is not None and history.closed.verdict == "faulted"
    if study.nearest() is None and (faulted or is_finished(history)):
        return "nothing ran"
    if not is_finished(history):
        return "unfinished"
    return "infeasible" if study.best() is None else "found"


def is_finished(history: History) -> bool:
    """Say whether the study came to its end, and nothing was launched after it."""
    closed = history.closed
    if closed is None or history.pending or closed.verdict in STOPPED_EARLY:
        return False
    return history.earlier == len(history.trials)  # the clock may have been set meanwhile


def baseline_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the engine's defaults as they were measured, or at least tried."""
    tried = [trial for trial in trials if trial.stage == BASELINE]
    measured = [trial for trial in tried if trial.score is not None]
    return next(iter(measured or tried), None)


def compare(baseline: Trial | None, shown: Trial | None, maximize: str) -> tuple[Comparison, ...]:
    """Set the two side by side in every metric that at least one of them has."""
    one, other = measurement_of(baseline), measurement_of(shown)
    if other is None:
        return ()
    metrics = COMPARED if maximize in COMPARED else (maximize, *COMPARED)
    pairs = (_comparison(metric, one, other) for metric in metrics)
    return tuple(p for p in pairs if p.baseline is not None or p.winner is not None)


def measurement_of(trial: Trial | None) -> Measurement | None:
    """Return the facts of a trial, None unless it was measured."""
    outcome = None if trial is None else trial.outcome
    return outcome.measurement if isinstance(outcome, Measured) else None


def overlap(one: Interval, other: Interval) -> bool:
    """Say whether two intervals share a point; an end that is not known bounds nothing."""
    below = one.high is not None and other.low is not None and one.high < other.low
    above = other.high is not None and one.low is not None and other.high < one.low
    return not (below or above)


def surely_kept(margin: Margin, measurement: Measurement) -> bool | None:
    """Say whether the whole interval keeps the limit; None without one, or with an open end."""
    interval = measurement.intervals.get(margin.limit.metric)
    if interval is None:
        return None
    end = interval.high if margin.limit.at_most is not None else interval.low
    return None if end is None else margin.limit.excess(end) <= 0


def state_of(trial: Trial) -> str:
    """Return one word for what came of a trial."""
    match trial.outcome:
        case Measured():
            return "feasible" if trial.feasible else "infeasible"
        case Rejected():
            return "rejected"
        case Faulted():
            return "faulted"
        case Invalid():
            return "invalid"


def reason_of(trial: Trial) -> str | None:
    """Return why a trial gave no measurement, None when it gave one."""
    match trial.outcome:
        case Measured():
            return None
        case Rejected(reason=reason) | Faulted(reason=reason) | Invalid(reason=reason):
            return reason


def failure_classes(study: Study, history: History) -> tuple[FailureClass, ...]:
    """Gather what did not work by state and reason, the most frequent first."""
    found: dict[tuple[str, str], list[int]] = {}
    for trial in study.trials:
        for why in _why_not(trial):
            found.setdefault((state_of(trial), why), []).append(trial.number)
    for launch in history.lost:
        found.setdefault(("lost", "the tuner died while it ran"), []).append(launch.number)
    for launch in history.dropped:
        found.setdefault(("dropped", "its user broke it off"), []).append(launch.number)
    classes = [
        FailureClass(state=state, reason=reason, numbers=tuple(sorted(numbers)))
        for (state, reason), numbers in found.items()
    ]
    return tuple(sorted(classes, key=lambda c: (-len(c.numbers), c.numbers)))


def _why_not(trial: Trial) -> list[str]:
    if trial.score is None:
        return [reason_of(trial) or ""]
    return [f"breaks {margin.limit}" for margin in trial.score.broken]


def _again(trials: Sequence[Trial], winner: Trial) -> tuple[Trial, ...]:
    return tuple(t for t in trials if t is not winner and t.candidate == winner.candidate)


def _rivals(trials: Sequence[Trial], winner: Trial) -> tuple[Trial, ...]:
    others = (t for t in trials if t.feasible and t.candidate != winner.candidate)
    return tuple(t for t in others if tied(winner, t))


def _comparison(metric: str, one: Measurement | None, other: Measurement) -> Comparison:
    return Comparison(
        metric=metric,
        baseline=None if one is None else one.metric(metric),
        winner=other.metric(metric),
        baseline_interval=None if one is None else one.intervals.get(metric),
        winner_interval=other.intervals.get(metric),
    )
