"""A set of knobs and the rules that tie them together."""

from collections.abc import Callable
from dataclasses import dataclass

from search_spaces.candidate import Candidate
from search_spaces.parameter import Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition over several knobs; *holds* must be pure and bear absent knobs."""

    says: str
    holds: Callable[[Candidate], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Every setting the search may launch an engine with."""

    parameters: tuple[Parameter, ...]
    rules: tuple[Rule, ...] = ()

    def __getitem__(self, name: str) -> Parameter:
        return next(p for p in self.parameters if p.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """The knobs, in the order they were declared."""
        return tuple(p.name for p in self.parameters)

    def problems(self, candidate: Candidate) -> list[str]:
        """Say in words why *candidate* is not in this space; empty means it is."""
        found = []
        for name, value in candidate.items:
            if name not in self.names:
                found.append(f"unknown knob {name!r}")
            elif value not in self[name]:
                found.append(f"{name} must be {self[name]}, found {value!r}")
        return found or [rule.says for rule in self.rules if not rule.holds(candidate)]
