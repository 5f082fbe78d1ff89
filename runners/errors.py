"""What can go wrong, sorted by what the caller should do about it.

RunnerError
+-- CandidateRejectedError    the engine cannot run this setting: learn it, do not retry
+-- MachineFaultError         the machine failed, not the setting: retry, teach nothing
+-- InvalidMeasurementError   it ran, but the numbers cannot be trusted: measure again
"""

from collections.abc import Mapping

from runners.cause import Cause, Direction


class RunnerError(Exception):
    """Base of everything a runner raises on purpose; the message is for people."""


class CandidateRejectedError(RunnerError):
    """The engine refused the setting, ran out of memory, or died under its load.

    *directions* says, by knob, where settings that run are to be found.
    """

    def __init__(
        self,
        message: str,
        *,
        cause: Cause = Cause.UNKNOWN,
        directions: Mapping[str, Direction] | None = None,
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.directions = dict(directions or {})


class MachineFaultError(RunnerError):
    """No free GPU, a port in use, no model files: says nothing about the setting.

    *lasting* faults will not go away by trying again.
    """

    def __init__(
        self, message: str, *, lasting: bool = False, cause: Cause = Cause.UNKNOWN
    ) -> None:
        super().__init__(message)
        self.lasting = lasting
        self.cause = cause


class InvalidMeasurementError(RunnerError):
    """The client was saturated, the outputs too short, the engine not the one we started."""
