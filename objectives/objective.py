"""From a measurement to a score. Everything here is pure."""

import math
from dataclasses import dataclass
from typing import Protocol

from objectives.measurement import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A promise to users: this metric stays at or below (or at or above) this value."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def bound(self) -> float:
        """The value on the edge of what is allowed."""
        return self.at_most if self.at_most is not None else float(self.at_least or 0.0)

    def excess(self, value: float) -> float:
        """Return how far *value* is beyond the bound, in the metric's unit; 0 or less keeps it."""
        return value - self.bound if self.at_most is not None else self.bound - value

    def __str__(self) -> str:
        sign = "<=" if self.at_most is not None else ">="
        return f"{self.metric} {sign} {self.bound:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """How one limit was kept: *relative* is (value - bound) / |bound|, and 0 or less keeps it.

    *value* is None when the metric was not measured; such a limit is not kept.
    """

    limit: Limit
    value: float | None
    relative: float

    @property
    def kept(self) -> bool:
        """True when the limit was kept."""
        return self.relative <= 0

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.limit.metric} was not measured, its limit is {self.limit.bound:g}"
        if not math.isfinite(self.value):
            return f"{self.limit} is broken without end: requests timed out"
        sign = "<=" if self.limit.at_most is not None else ">="
        word = "keeps" if self.kept else "breaks"
        return f"{self.limit.metric} = {self.value:g} {word} {sign} {self.limit.bound:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How good a candidate was; higher *value* is better, and only feasible scores compare."""

    value: float
    margins: tuple[Margin, ...] = ()

    @property
    def feasible(self) -> bool:
        """True when every limit was kept."""
        return all(margin.kept for margin in self.margins)

    @property
    def broken(self) -> tuple[Margin, ...]:
        """The limits that were not kept, worst first."""
        return tuple(sorted((m for m in self.margins if not m.kept), key=lambda m: -m.relative))

    @property
    def violation(self) -> float:
        """Sum of the relative excesses over the broken limits; 0 when feasible."""
        return sum(margin.relative for margin in self.broken)


class Objective(Protocol):
    """Turns facts into a score."""

    def judge(self, measurement: Measurement) -> Score:
        """Score *measurement*; must be pure so that old trials can be judged again."""
