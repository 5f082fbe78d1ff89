"""One setting to try."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from search_spaces.parameter import Value


@dataclass(frozen=True, slots=True)
class Candidate:
    """An immutable setting; a knob that is absent stays at the engine's own default.

    Two candidates are equal when their fingerprints are.
    """

    items: tuple[tuple[str, Value], ...] = field(compare=False)
    fingerprint: str

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Self:
        """Build a candidate; the order of *values* does not matter, their types do."""
        items = tuple(sorted(values.items()))
        return cls(items, hashlib.sha256(json.dumps(items).encode()).hexdigest()[:12])

    def values(self) -> dict[str, Value]:
        """Return the knobs that are set, by name."""
        return dict(self.items)

    def with_values(self, values: Mapping[str, Value]) -> Self:
        """Return this setting with some knobs set otherwise."""
        return type(self).of({**self.values(), **values})

    def __getitem__(self, name: str) -> Value:
        return dict(self.items)[name]

    def __contains__(self, name: object) -> bool:
        return name in dict(self.items)

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self.items))

    def __str__(self) -> str:
        return " ".join(f"{k}={v}" for k, v in self.items) or "engine defaults"
