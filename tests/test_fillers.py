from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from runners.fillers import endless, fresh
from runners.records import FILLER, MEASURED


@given(st.lists(st.integers(), min_size=3, unique=True), st.integers(0, 2), st.integers(1, 50))
def test_a_repeated_filler_finds_only_its_shared_prefix_in_the_cache(
    prompt: list[int], prefix_tokens: int, times: int
) -> None:
    """Its own part begins elsewhere each time; the shared prefix and the length stay."""
    again = fresh(prompt, prefix_tokens, times)
    own = len(prompt) - prefix_tokens

    assert again[:prefix_tokens] == tuple(prompt[:prefix_tokens])
    assert sorted(again) == sorted(prompt)
    assert (again[prefix_tokens] == prompt[prefix_tokens]) is (times % own == 0)


def test_a_slot_never_runs_out_of_fillers() -> None:
    """First the planned requests, then the fillers round and round, each time counted."""
    plan = [("a", MEASURED), ("b", FILLER), ("c", FILLER)]
    sent = list(islice(endless(plan, lambda r: r[1]), 7))

    assert [(name, times) for (name, _), times in sent] == [
        *(("a", 0), ("b", 0), ("c", 0)),
        *(("b", 1), ("c", 1), ("b", 2), ("c", 2)),
    ]
