"""One launch of one candidate: what was asked, what came of it, and what we make of it."""

from dataclasses import dataclass

from objectives import Score
from runners import Outcome
from search_spaces import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A candidate on its way: numbered in the order of launching, from 0."""

    number: int
    stage: str
    candidate: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A launch that ended. *score* is None unless it was measured."""

    launch: Launch
    outcome: Outcome
    score: Score | None
    took_s: float
    started_at: str = ""  # ISO 8601, UTC

    @property
    def number(self) -> int:
        """The launch's number."""
        return self.launch.number

    @property
    def stage(self) -> str:
        """The stage the launch belonged to."""
        return self.launch.stage

    @property
    def candidate(self) -> Candidate:
        """The setting that was tried."""
        return self.launch.candidate

    @property
    def feasible(self) -> bool:
        """True when it was measured and kept every limit."""
        return self.score is not None and self.score.feasible
