"""The prefix cache against a plain list of everything that was ever inserted."""

from hypothesis import given
from hypothesis import strategies as st

from runners.emulated.prefix_cache import MOST_LEAVES, PrefixCache, Tokens

PROMPTS = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple), min_size=1, max_size=12
)


def longest_match(tokens: Tokens, kept: list[Tokens], page: int) -> int:
    best = 0
    for other in kept:
        same = 0
        while same < min(len(tokens), len(other)) and tokens[same] == other[same]:
            same += 1
        best = max(best, same - same % page)
    return best


@given(PROMPTS, st.integers(1, 4))
def test_a_match_is_the_longest_common_prefix_in_whole_pages(
    prompts: list[Tokens], page: int
) -> None:
    """However the edges of the tree were cut."""
    cache, kept = PrefixCache(page), list[Tokens]()
    for prompt in prompts:
        assert cache.match(prompt)[0] == longest_match(prompt, kept, page)
        cache.insert(prompt)
        kept.append(prompt[: len(prompt) - len(prompt) % page])
        assert cache.match(prompt)[0] == len(kept[-1])


@given(PROMPTS, st.integers(1, 4))
def test_tokens_are_counted_once_however_many_share_them(prompts: list[Tokens], page: int) -> None:
    """The cache holds the distinct pages of all prefixes, no more."""
    cache = PrefixCache(page)
    for prompt in prompts:
        cache.insert(prompt)

    pages = {p[:end] for p in prompts for end in range(page, len(p) + 1, page)}
    assert cache.tokens == cache.evictable == len(pages) * page


@given(PROMPTS, st.sets(st.integers(0, 11)))
def test_what_is_locked_stays_and_everything_else_can_go(
    prompts: list[Tokens], locked: set[int]
) -> None:
    """Evicting more than there is leaves the locked prefixes, whole."""
    cache = PrefixCache()
    nodes = {}
    for i, prompt in enumerate(prompts):
        node = cache.insert(prompt)
        if i in locked:
            cache.lock(node)
            nodes[i] = node
    evictable = cache.evictable

    assert cache.evict(10_000) == evictable
    assert all(cache.match(prompts[i])[0] == len(prompts[i]) for i in nodes)
    for node in nodes.values():
        cache.unlock(node)
    assert cache.evictable == cache.tokens
    cache.evict(10_000)
    assert cache.tokens == 0


def test_the_leaf_touched_longest_ago_goes_first() -> None:
    """Least recently used, and never a prefix before what hangs on it."""
    cache = PrefixCache()
    old, new = (1, 1, 1, 2, 2), (1, 1, 1, 3, 3)
    cache.insert(old)
    cache.insert(new)
    cache.insert(old)

    assert cache.evict(1) == 2
    assert cache.match(old)[0] == 5
    assert cache.match(new)[0] == 3


def test_a_cache_that_never_evicts_does_not_grow() -> None:
    """The same prompt, ten thousand times, leaves one entry to evict."""
    cache = PrefixCache()
    for _ in range(10_000):
        node = cache.insert((1, 2, 3))
        cache.lock(node)
        cache.unlock(node)

    assert len(cache._leaves) <= MOST_LEAVES
    assert cache.evict(1) == 3
