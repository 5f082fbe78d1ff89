"""What a study may spend, and on what."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from search_spaces import SearchSpace, Value

BASELINE = "baseline"  # the name of the first launch, the engine's own defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A part of the search: it moves *knobs* and holds *at* while it lasts."""

    name: str
    knobs: tuple[str, ...]
    launches: int
    at: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What may be spent, and on what."""

    space: SearchSpace
    stages: tuple[StagePlan, ...]
    launches: int
    budget_s: float  # of engine time: the sum over all launches
