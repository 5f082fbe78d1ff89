"""Clamps: settings that an engine ran otherwise than asked, and requests that come out alike.

SGLang lowers max_running_requests to what its KV cache can hold, and says so in its log only. A
request of 256 that came out as 97 tells what 128 comes out as: one point, launched once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from runners import Measured
from search_spaces import Candidate, Choice, FloatRange, IntRange, Parameter, Value
from search_spaces.parameter import DIGITS
from tuner.trial import Trial


@dataclass(frozen=True, slots=True)
class Clamp:
    """A number that came out lower or higher than asked."""

    knob: str
    requested: float
    effective: float

    def __str__(self) -> str:
        return f"{self.knob} {self.requested} -> {self.effective} (clamped)"

    def catches(self, value: Value) -> bool:
        """Say whether a request for *value* comes out the same."""
        if not is_number(value):
            return False
        lowered = self.effective < self.requested
        return value >= self.effective if lowered else value <= self.effective


def clamps(trial: Trial) -> tuple[Clamp, ...]:
    """Return what the engine of *trial* clamped."""
    if not isinstance(trial.outcome, Measured):
        return ()
    ran = trial.outcome.effective
    pairs = ((name, value, ran.get(name)) for name, value in trial.candidate.items)
    return tuple(
        Clamp(name, asked, came)
        for name, asked, came in pairs
        if is_number(asked) and is_number(came) and came != asked
    )


def is_number(value: object) -> TypeGuard[float]:
    """Say whether *value* is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def comes_out_as(candidate: Candidate, trial: Trial) -> bool:
    """Say whether *candidate* would run with the very settings that *trial* ran with."""
    caught = {clamp.knob: clamp for clamp in clamps(trial)}
    if not caught:
        return False
    asked, tried = candidate.values(), trial.candidate.values()
    return asked.keys() == tried.keys() and all(
        caught[name].catches(value) if name in caught else value == tried[name]
        for name, value in asked.items()
    )


def as_it_ran(trial: Trial, knobs: Mapping[str, Parameter]) -> dict[str, Value]:
    """Return the candidate's values for *knobs*, as the engine ran them.

    A value that came out beyond the knob's range or between its steps stays as it was asked.
    """
    values = {name: value for name, value in trial.candidate.items if name in knobs}
    for clamp in clamps(trial):
        if clamp.knob in knobs and on_steps(clamp.effective, knobs[clamp.knob]):
            values[clamp.knob] = clamp.effective
    return values


def on_steps(value: float, parameter: Parameter) -> bool:
    """Say whether a search over *parameter* could have asked for *value*."""
    match parameter:
        case FloatRange(low=low, top=top, step=float(step)):
            steps = round((value - low) / step)
            return low <= value <= top and round(low + steps * step, DIGITS) == value
        case Choice() | IntRange() | FloatRange():
            return value in parameter
