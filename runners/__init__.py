"""How to try a candidate: start the engine, send it traffic, report the facts."""

from runners.errors import (
    CandidateRejectedError,
    InvalidMeasurementError,
    MachineFaultError,
    RunnerError,
)
from runners.outcome import (
    Faulted,
    Invalid,
    Measured,
    Outcome,
    Rejected,
    outcome_from_json,
    outcome_to_json,
)
from runners.spec import EngineSpec, LoadSpec, Shape, WorkloadSpec
from runners.trial_spec import TrialSpec

__all__ = [
    "CandidateRejectedError",
    "EngineSpec",
    "Faulted",
    "Invalid",
    "InvalidMeasurementError",
    "LoadSpec",
    "MachineFaultError",
    "Measured",
    "Outcome",
    "Rejected",
    "RunnerError",
    "Shape",
    "TrialSpec",
    "WorkloadSpec",
    "outcome_from_json",
    "outcome_to_json",
]
