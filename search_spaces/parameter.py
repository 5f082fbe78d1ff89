"""One knob of an engine: its name and the values it may take."""

import math
from dataclasses import dataclass

DIGITS = 12  # enough for any step a person writes; what lies behind them is rounding

Value = bool | int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A knob with a short list of values in no particular order."""

    name: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"{self.name}: a choice needs at least one value, found none")
        if len({(type(v), v) for v in self.values}) != len(self.values):
            raise ValueError(f"{self.name}: each value may be listed once, found {self.values!r}")

    def __contains__(self, value: object) -> bool:
        return any(value == v and type(value) is type(v) for v in self.values)

    def __str__(self) -> str:
        return "one of " + ", ".join(str(v) for v in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntRange:
    """A whole-number knob from *low* to *high*, both included, in steps of *step*.

    With *log* the search looks at ratios (8, 16, 32 ...) instead of differences.
    """

    name: str
    low: int
    high: int
    step: int = 1
    log: bool = False

    def __post_init__(self) -> None:
        _check_range(self.name, self.low, self.high, self.step, log=self.log)

    @property
    def top(self) -> int:
        """The highest value that whole steps reach."""
        return self.high - (self.high - self.low) % self.step

    def __contains__(self, value: object) -> bool:
        if type(value) is not int:
            return False
        return self.low <= value <= self.high and (value - self.low) % self.step == 0

    def __str__(self) -> str:
        return f"{self.low} to {self.high}" + _spacing(self.step, 1, log=self.log)


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatRange:
    """A real-valued knob from *low* to *high*, both included, rounded to *step* when given."""

    name: str
    low: float
    high: float
    step: float | None = None
    log: bool = False

    def __post_init__(self) -> None:
        _check_range(self.name, self.low, self.high, self.step, log=self.log)

    @property
    def top(self) -> float:
        """The highest value that whole steps reach."""
        if self.step is None:
            return self.high
        steps = math.floor((self.high - self.low) / self.step + 1e-9)
        return round(self.low + steps * self.step, DIGITS)

    def __contains__(self, value: object) -> bool:
        return type(value) is float and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}" + _spacing(self.step, None, log=self.log)


Parameter = Choice | IntRange | FloatRange


def _check_range(name: str, low: float, high: float, step: float | None, *, log: bool) -> None:
    if low > high:
        raise ValueError(f"{name}: low must not be above high, found low = {low}, high = {high}")
    if step is not None and step <= 0:
        raise ValueError(f"{name}: step must be above 0, found {step}")
    if log and low <= 0:
        raise ValueError(f"{name}: a log range must start above 0, found low = {low}")
    if log and step not in {None, 1}:
        raise ValueError(f"{name}: a range is either log or stepped, found log with step {step}")


def _spacing(step: float | None, plain: float | None, *, log: bool) -> str:
    if log:
        return " (log)"
    return "" if step == plain else f" in steps of {step:g}"
