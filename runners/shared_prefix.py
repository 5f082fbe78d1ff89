"""How much two prompts have in common at their beginning."""


def shared_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the tokens both begin with, by halving: tuples compare at the speed of C."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
