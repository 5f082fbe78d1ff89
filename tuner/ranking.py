"""Which of two trials is better, and when they cannot be told apart."""

from runners import Measured
from tuner.trial import Trial

CLOSE = 0.1  # violations of two infeasible trials that differ by less are noise


def rank(trial: Trial) -> tuple[bool, float]:
    """Order trials: feasible before infeasible, then by value, or by how little they break."""
    if trial.score is None:
        return (False, float("-inf"))
    return (
        trial.score.feasible,
        trial.score.value if trial.score.feasible else -trial.score.violation,
    )


def tied(one: Trial, other: Trial) -> bool:
    """Say whether two measured trials cannot be told apart.

    Feasible ones tie when the intervals of their throughput overlap; infeasible ones when their
    violations are within `CLOSE` of each other, relative to the larger one.
    """
    if one.score is None or other.score is None or one.feasible != other.feasible:
        return False
    if not one.feasible:
        violations = (one.score.violation, other.score.violation)
        return max(violations) - min(violations) <= CLOSE * max(violations)
    mine, theirs = (_throughput(t) for t in (one, other))
    return mine[0] <= theirs[1] and theirs[0] <= mine[1]


def _throughput(trial: Trial) -> tuple[float, float]:
    if not isinstance(trial.outcome, Measured):
        raise TypeError(f"only a measured trial has a throughput, found {trial.outcome!r}")
    measurement = trial.outcome.measurement
    interval = measurement.intervals.get("output_tokens_per_s")
    point = measurement.output_tokens_per_s
    if interval is None or interval.low is None or interval.high is None:
        return (point, point)
    return (interval.low, interval.high)
