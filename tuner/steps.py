"""What a study may do next."""

from dataclasses import dataclass

from search_spaces import Candidate
from tuner.plan import StagePlan


@dataclass(frozen=True, slots=True)
class Try:
    """Launch this candidate."""

    stage: str
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Ask:
    """Get a new candidate from the strategy: *base* with other values for the stage's knobs."""

    stage: StagePlan
    base: Candidate
    asked: int  # candidates this stage has had


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be decided before a running launch ends."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more to do. *fault* is true when the machine or the set-up is to blame."""

    reason: str
    fault: bool = False


Step = Try | Ask | Wait | Stop
