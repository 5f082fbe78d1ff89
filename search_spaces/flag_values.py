"""What the words of a command line give a flag, as the engine's own parser would take it."""

from collections import Counter
from collections.abc import Sequence

COLLECTED = ("--emulated-fault",)  # of the emulated engine: each one counts


def fixed_value(words: Sequence[str], flag: str) -> str | None:
    """Return the value that *words* give *flag*, None when they do not name it.

    The last one counts, as it does for SGLang.
    """
    found = None
    for i, word in enumerate(words):
        if word == flag:
            found = words[i + 1] if i + 1 < len(words) else ""
        elif word.startswith(flag + "="):
            found = word.partition("=")[2]
    return found


def fixed_number(words: Sequence[str], flag: str, absent: int) -> int:
    """Return the whole number that *words* give *flag*; *absent* for none or another text."""
    text = fixed_value(words, flag) or ""
    return int(text) if text.removeprefix("-").isdecimal() else absent


def given_twice(words: Sequence[str]) -> list[str]:
    """Say in words which flags stand more than once in *words*; SGLang has no list of them."""
    flags = (word.partition("=")[0] for word in words if word.startswith("--"))
    names = Counter(flag for flag in flags if flag not in COLLECTED)
    return [
        f"{name} must be given once, found it {count} times: SGLang would take the last"
        for name, count in names.items()
        if count > 1
    ]
