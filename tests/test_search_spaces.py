import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces import Candidate, Choice, FloatRange, IntRange, sglang
from search_spaces.flag_values import fixed_value

VALUES = st.one_of(st.booleans(), st.integers(), st.text())


def test_the_engine_defaults_are_in_every_space() -> None:
    """The setting users get without us is always a legal starting point, and sets no flag."""
    space = sglang.space([Choice(name="schedule_policy", values=("lpm", "fcfs"))])
    baseline = Candidate.of({})

    assert space.problems(baseline) == []
    assert sglang.flags(baseline) == []


def test_unknown_knob_is_named() -> None:
    """A typo in a knob is reported by name, never dropped."""
    space = sglang.space([IntRange(name="max_running_requests", low=1, high=8)])

    assert space.problems(Candidate.of({"max_runing_requests": 1})) == [
        "unknown knob 'max_runing_requests'"
    ]


def test_a_token_budget_never_exceeds_the_prefill_budget() -> None:
    """A chunk larger than --max-prefill-tokens would be cut silently: both flags move together."""
    assert sglang.flags(Candidate.of({"token_budget": 512})) == [
        "--chunked-prefill-size", "512", "--max-prefill-tokens", "16384",
    ]  # fmt: skip
    assert sglang.flags(Candidate.of({"token_budget": 32768}))[-1] == "32768"


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("--max-num-batched-tokens", "--chunked-prefill-size"),
        ("--radix-trees", "--disable-radix-cache"),
        ("--gpu-memory-utilization=0.9", "--mem-fraction-static"),
    ],
)
def test_flags_of_articles_and_other_engines_get_the_right_name(flag: str, instead: str) -> None:
    """A flag SGLang does not have is answered with the one it has, before anything starts."""
    (says,) = sglang.wrong_names([flag])

    assert flag.partition("=")[0] in says
    assert instead in says


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"max_running_requests": 0}, "max_running_requests must be at least 1, found 0"),
        ({"schedule_policy": "priority"}, "dies when it starts"),
        ({"mem_fraction_static": 1.5}, "mem_fraction_static must be at most 0.99, found 1.5"),
        ({"schedule_conservativeness": -1.0}, "must be at least 0, found -1"),
        ({"token_budget": "4k"}, "token_budget must be a whole number, found '4k'"),
        ({"mem_fraction_static": float("nan")}, "must be a finite number, found nan"),
        ({"--schedule-policy": "priority"}, "--schedule-policy must be one of fcfs, lpm"),
        ({"--chunked-prefill-size": "4k"}, "--chunked-prefill-size must be a whole number"),
    ],
)
def test_values_sglang_would_take_and_die_of_are_refused(
    values: dict[str, bool | int | float | str], says: str
) -> None:
    """Values that SGLang accepts without a word, or crashes on, are problems in words."""
    (problem,) = sglang.value_problems(Candidate.of(values))

    assert says in problem


def test_a_flag_that_a_knob_sets_is_no_knob() -> None:
    """A knob's checks and rules would not hold for it; the chunk's flag can do what none can."""
    assert sglang.name_problems("--schedule-policy") == [
        "the knob schedule_policy sets it: write schedule_policy"
    ]
    for name in ("schedule_policy", "--chunked-prefill-size", "--max-prefill-tokens"):
        assert sglang.name_problems(name) == []
    assert sglang.value_problems(Candidate.of({"--chunked-prefill-size": -1})) == []


def test_the_last_of_two_equal_flags_counts() -> None:
    """SGLang's parser takes the last, in either spelling; that it was given twice is said."""
    words = ("--page-size", "16", "--tp-size=2", "--page-size=32")

    assert fixed_value(words, "--page-size") == "32"
    assert sglang.fixed_problems(words) == [
        "--page-size must be given once, found it 2 times: SGLang would take the last"
    ]


@pytest.mark.parametrize("word", ["nan", "inf", "-inf"])
def test_a_fixed_number_is_finite(word: str) -> None:
    """Python reads these words as numbers, and SGLang would start with them."""
    for flag in ("--mem-fraction-static", "--schedule-conservativeness"):
        assert sglang.fixed_problems([flag, word]) == [
            f"{flag} must be a finite number, found {word}"
        ]


def test_rules_know_the_fixed_flags() -> None:
    """A rule holds between a searched knob and a flag that never changes."""
    budget = IntRange(name="token_budget", low=64, high=512)
    policy = Choice(name="schedule_policy", values=("fcfs", "lpm"))
    paged = sglang.space([budget, policy], ["--page-size", "16"])
    uncached = sglang.space([budget, policy], ["--disable-radix-cache"])

    assert paged.problems(Candidate.of({"token_budget": 100})) == [
        "--page-size must divide token_budget"
    ]
    assert paged.problems(Candidate.of({"token_budget": 128})) == []
    assert uncached.problems(Candidate.of({"schedule_policy": "fcfs"})) == []
    assert uncached.problems(Candidate.of({"schedule_policy": "lpm"})) != []


@pytest.mark.parametrize(
    "build",
    [
        lambda: IntRange(name="k", low=3, high=2),
        lambda: FloatRange(name="k", low=0.0, high=1.0, log=True),
        lambda: Choice(name="k", values=()),
        lambda: Choice(name="k", values=(1, 1)),
    ],
)
def test_an_empty_or_senseless_range_is_refused(build: object) -> None:
    """A range nobody can draw from is an error where it is written, not where it is used."""
    with pytest.raises(ValueError, match=r"^k: "):
        build()  # type: ignore[operator]


@given(st.dictionaries(st.text(), VALUES))
def test_fingerprint_ignores_order(values: dict[str, bool | int | str]) -> None:
    """Two ways to write one setting are one setting."""
    backwards = dict(reversed(values.items()))

    assert Candidate.of(values).fingerprint == Candidate.of(backwards).fingerprint


@given(VALUES, VALUES)
def test_only_the_same_setting_is_equal(one: bool | int | str, other: bool | int | str) -> None:
    """False is not 0: an engine flag and a number never share a fingerprint."""
    same = type(one) is type(other) and one == other

    assert (Candidate.of({"knob": one}) == Candidate.of({"knob": other})) is same
