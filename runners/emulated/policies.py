"""The order of the waiting queue, by SGLang's --schedule-policy.

The cache-aware policies fall back to the order of arrival: lpm and hrrn while more than 128
requests wait, all of them without the prefix cache (`deployment.py` sees to that). *hrrn* rates
a request by (waited + service) / service, its service being the uncached prompt and the output,
at a guessed rate; SGLang's own estimate may differ. *routing-key* needs keys that no request of
ours carries, and so keeps the order of arrival.
"""

from collections.abc import Callable
from random import Random

from runners.emulated.prefix_cache import Node, PrefixCache
from runners.emulated.request import Request

LISTED_POLICIES = (  # as SGLang's parser lists them; one of them is implemented nowhere
    "lpm",
    "random",
    "fcfs",
    "dfs-weight",
    "lof",
    "priority",
    "routing-key",
    "hrrn",
    "shortest-prefill-first",
)
CACHE_AWARE = frozenset({"lpm", "dfs-weight", "hrrn", "shortest-prefill-first"})
LONG_QUEUE = 128  # beyond it lpm and hrrn would take too long to sort
SHORT_PREFIX = 32  # cached tokens; below it, wait for a sibling of the same batch to be computed
GUESSED_PREFILL_TOKENS_PER_S = 10_000.0
GUESSED_DECODE_TOKENS_PER_S = 50.0

Order = Callable[[list[Request], PrefixCache, float, Random], None]


def keep(waiting: list[Request], _cache: PrefixCache, _now_s: float, _rng: Random) -> None:
    """First come, first served: requests are appended as they come."""


def longest_prefix(waiting: list[Request], cache: PrefixCache, now_s: float, rng: Random) -> None:
    """Longest cached prefix first; of siblings with nothing cached yet, one at a time."""
    if len(waiting) > LONG_QUEUE:
        return keep(waiting, cache, now_s, rng)
    match_all(waiting, cache)
    later = _siblings(waiting)
    return waiting.sort(key=lambda r: (r in later, -r.matched))


def shortest_prefill(waiting: list[Request], cache: PrefixCache, _s: float, _rng: Random) -> None:
    """Fewest prompt tokens to compute first."""
    match_all(waiting, cache)
    waiting.sort(key=lambda r: len(r.tokens) - r.matched)


def response_ratio(waiting: list[Request], cache: PrefixCache, now_s: float, rng: Random) -> None:
    """Highest ratio of time in the system to time of service first."""
    if len(waiting) > LONG_QUEUE:
        return keep(waiting, cache, now_s, rng)
    match_all(waiting, cache)

    def ratio(r: Request) -> float:
        service = (len(r.tokens) - r.matched) / GUESSED_PREFILL_TOKENS_PER_S
        service += (r.output_tokens - r.emitted) / GUESSED_DECODE_TOKENS_PER_S
        return (now_s - r.arrived_s) / service

    return waiting.sort(key=ratio, reverse=True)


def longest_output(waiting: list[Request], _c: PrefixCache, _s: float, _rng: Random) -> None:
    """Longest output first."""
    waiting.sort(key=lambda r: -r.output_tokens)


def shuffled(waiting: list[Request], _cache: PrefixCache, _now_s: float, rng: Random) -> None:
    """Any order."""
    rng.shuffle(waiting)


def heaviest_branch(waiting: list[Request], cache: PrefixCache, _s: float, _rng: Random) -> None:
    """Depth first through the prefix tree, the branch that most requests wait for first."""
    match_all(waiting, cache)
    below: dict[Node, dict[Node, None]] = {}
    ending: dict[Node, list[Request]] = {}
    weight: dict[Node, int] = {}
    for request in waiting:
        node = request.matched_node or cache.root
        ending.setdefault(node, []).append(request)
        up: Node | None = node
        while up is not None:
            weight[up] = weight.get(up, 0) + 1
            if up.parent is not None:
                below.setdefault(up.parent, {})[up] = None
            up = up.parent
    waiting[:] = _depth_first(cache.root, below, ending, weight)


def match_all(waiting: list[Request], cache: PrefixCache) -> None:
    """Look up the cached prefix of every waiting request; nothing is done twice."""
    state = cache.changes
    for request in waiting:
        if request.matched_at != state:
            request.matched, request.matched_node = cache.match(request.tokens[:-1])
            request.matched_at = state


def _siblings(waiting: list[Request]) -> set[Request]:
    """Return those that share an uncached start with an earlier one: it may be cached soon."""
    starts: set[tuple[int, ...]] = set()
    later: set[Request] = set()
    for request in waiting:
        if request.matched > SHORT_PREFIX:
            continue
        start = request.tokens[:SHORT_PREFIX]
        if start in starts and len(start) == SHORT_PREFIX:
            later.add(request)
        starts.add(start)
    return later


def _depth_first(
    root: Node,
    below: dict[Node, dict[Node, None]],
    ending: dict[Node, list[Request]],
    weight: dict[Node, int],
) -> list[Request]:
    """Return each node's requests after those of its children, without recursion."""
    reverse: list[Request] = []
    stack = [root]
    while stack:
        node = stack.pop()
        reverse.extend(reversed(ending.get(node, ())))
        stack.extend(sorted(below.get(node, ()), key=lambda n: -weight[n]))
    return reverse[::-1]


POLICIES: dict[str, Order] = {
    "fcfs": keep,
    "routing-key": keep,
    "lpm": longest_prefix,
    "dfs-weight": heaviest_branch,
    "lof": longest_output,
    "hrrn": response_ratio,
    "random": shuffled,
    "shortest-prefill-first": shortest_prefill,
}
