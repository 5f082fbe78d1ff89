"""How to try a candidate: start the engine, send it traffic, report the facts.

The names below are looked up on first use, so that the load client and other small processes of
this package start without the libraries they do not need.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
else:
    _NAMES = {
        "errors": (
            "CandidateRejectedError",
            "InvalidMeasurementError",
            "MachineFaultError",
            "RunnerError",
        ),
        "outcome": (
            "Faulted",
            "Invalid",
            "Measured",
            "Outcome",
            "Rejected",
            "outcome_from_json",
            "outcome_to_json",
        ),
        "spec": ("EngineSpec", "LoadSpec", "Shape", "WorkloadSpec"),
        "trial_spec": ("TrialSpec",),
    }
    _HOMES = {name: module for module, names in _NAMES.items() for name in names}

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


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
