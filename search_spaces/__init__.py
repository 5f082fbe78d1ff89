"""What may vary: the knobs of an engine and the rules that tie them together."""

from search_spaces.candidate import Candidate
from search_spaces.parameter import Choice, FloatRange, IntRange, Parameter, Value
from search_spaces.space import Rule, SearchSpace

__all__ = [
    "Candidate",
    "Choice",
    "FloatRange",
    "IntRange",
    "Parameter",
    "Rule",
    "SearchSpace",
    "Value",
]
