"""What stands between a setting and a launch. Pure."""

from dataclasses import dataclass

from search_spaces import Candidate, SearchSpace
from tuner.clamps import clamps, comes_out_as
from tuner.trial import Trial
from tuner.walls import Walls, walls_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Lets pass what is worth a launch: new, allowed, and not known to fail."""

    space: SearchSpace
    launched: frozenset[str]  # fingerprints
    clamped: tuple[Trial, ...]
    walls: Walls

    def lets(self, candidate: Candidate) -> bool:
        """Say whether a launch of *candidate* may teach anything."""
        return (
            candidate.fingerprint not in self.launched
            and not self.space.problems(candidate)
            and not any(comes_out_as(candidate, trial) for trial in self.clamped)
            and not self.walls.forbid(candidate)
        )


def gate_of(space: SearchSpace, launched: frozenset[str], trials: tuple[Trial, ...]) -> Gate:
    """Return the gate that stands after *trials*."""
    return Gate(
        space=space,
        launched=launched,
        clamped=tuple(trial for trial in trials if clamps(trial)),
        walls=walls_of(space, trials),
    )
