"""What is good: the facts of a run, the limits we accept, and how we rank what is left."""

from objectives.measurement import METRICS, Interval, Measurement
from objectives.objective import Limit, Margin, Objective, Score
from objectives.throughput import ThroughputUnderLimits

__all__ = [
    "METRICS",
    "Interval",
    "Limit",
    "Margin",
    "Measurement",
    "Objective",
    "Score",
    "ThroughputUnderLimits",
]
