"""What came of trying a candidate: four cases, sorted by what to do about them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from objectives import Measurement
from runners.cause import Cause, Direction
from search_spaces import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """It ran; here are the facts, and the settings the engine says it really used."""

    measurement: Measurement
    effective: Mapping[str, Value] = field(default_factory=dict)
    engine_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The engine cannot run this candidate: an infeasible point, never retried.

    *directions* says, by knob, where settings that run are to be found.
    """

    reason: str
    cause: Cause = Cause.UNKNOWN
    directions: Mapping[str, Direction] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulted:
    """The machine failed; we know nothing about this candidate; *lasting* ones end the study."""

    reason: str
    lasting: bool = False
    cause: Cause = Cause.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """It ran, but the numbers cannot be trusted: measured again, never scored."""

    reason: str


Outcome = Measured | Rejected | Faulted | Invalid


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Return plain data that `outcome_from_json` takes back."""
    match outcome:
        case Measured():
            return {
                "state": "measured",
                "measurement": outcome.measurement.to_json(),
                "effective": dict(outcome.effective),
                "engine_version": outcome.engine_version,
            }
        case Rejected():
            return {
                "state": "rejected",
                "reason": outcome.reason,
                "cause": outcome.cause.value,
                "directions": dict(outcome.directions),
            }
        case Faulted():
            return {
                "state": "faulted",
                "reason": outcome.reason,
                "lasting": outcome.lasting,
                "cause": outcome.cause.value,
            }
        case Invalid(reason=reason):
            return {"state": "invalid", "reason": reason}


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    """Rebuild what `outcome_to_json` gave out."""
    match data["state"]:
        case "measured":
            return Measured(
                measurement=Measurement.from_json(data["measurement"]),
                effective=data["effective"],
                engine_version=data["engine_version"],
            )
        case "rejected":
            return Rejected(
                reason=data["reason"], cause=_cause(data), directions=data.get("directions", {})
            )
        case "faulted":
            return Faulted(reason=data["reason"], lasting=data["lasting"], cause=_cause(data))
        case "invalid":
            return Invalid(reason=data["reason"])
        case other:
            raise ValueError(f"an outcome's state must be one of the four, found {other!r}")


def _cause(data: Mapping[str, Any]) -> Cause:
    return Cause(data.get("cause", Cause.UNKNOWN))  # the first journals did not name it
