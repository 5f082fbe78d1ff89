"""The most of one metric while every limit holds."""

import math
from dataclasses import dataclass

from objectives.measurement import Measurement
from objectives.objective import Limit, Margin, Score

MISSING = 1.0  # relative excess of a limit whose metric was not measured
WORST = 10.0  # no excess counts for more, so that one wild number does not drown the others


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputUnderLimits:
    """Maximise *maximize* (a metric of `Measurement`) subject to *limits*."""

    maximize: str
    limits: tuple[Limit, ...]

    def judge(self, measurement: Measurement) -> Score:
        """Score by the maximised metric; a metric that is missing scores 0."""
        value = measurement.metric(self.maximize)
        return Score(
            value=0.0 if value is None else value,
            margins=tuple(_margin(limit, measurement) for limit in self.limits),
        )


def _margin(limit: Limit, measurement: Measurement) -> Margin:
    value = measurement.metric(limit.metric)
    if value is None:
        return Margin(limit=limit, value=None, relative=MISSING)
    if not math.isfinite(value):
        return Margin(limit=limit, value=value, relative=WORST)
    scale = abs(limit.bound) or 1.0
    return Margin(limit=limit, value=value, relative=min(limit.excess(value) / scale, WORST))
