"""Requests that keep a slot busy after its own are done, for as long as it takes.

A filler that came round unchanged would be found whole in the prefix cache, and a policy that
serves cached prompts first would let it starve the requests that are measured.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from runners.records import FILLER

R = TypeVar("R")


def fresh(prompt: Sequence[int], prefix_tokens: int, times: int) -> tuple[int, ...]:
    """Return *prompt* as it is sent after *times* repeats: its own part begins elsewhere.

    The first *prefix_tokens* are shared with other requests and stay as they are.
    """
    own = tuple(prompt[prefix_tokens:])
    turn = times % len(own)
    return (*prompt[:prefix_tokens], *own[turn:], *own[:turn])


def endless(requests: Sequence[R], phase: Callable[[R], str]) -> Iterator[tuple[R, int]]:
    """Yield each of a slot's requests, then its fillers for ever, with how often each came."""
    yield from ((request, 0) for request in requests)
    fillers = [request for request in requests if phase(request) == FILLER]
    times = 0
    while fillers:
        times += 1
        yield from ((filler, times) for filler in fillers)
