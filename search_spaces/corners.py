"""A handful of settings at the edges of a space: where an engine refuses first."""

from search_spaces.candidate import Candidate
from search_spaces.parameter import Choice, FloatRange, IntRange, Parameter, Value
from search_spaces.space import SearchSpace


def corners(space: SearchSpace) -> list[Candidate]:
    """Return each knob at each of its ends by itself, then all at their first and last."""
    alone = [Candidate.of({p.name: end}) for p in space.parameters for end in ends(p)]
    all_first = Candidate.of({p.name: ends(p)[0] for p in space.parameters})
    all_last = Candidate.of({p.name: ends(p)[-1] for p in space.parameters})
    return list(dict.fromkeys([*alone, all_first, all_last]))


def ends(parameter: Parameter) -> tuple[Value, ...]:
    """Return every value of a choice, the two ends of a range."""
    match parameter:
        case Choice(values=values):
            return values
        case IntRange(low=low, high=high, step=step):
            return (low, high - (high - low) % step)
        case FloatRange(low=low, high=high):
            return (low, high)
