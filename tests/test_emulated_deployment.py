"""What the emulated engine makes of its flags, against what was seen of SGLang 0.5.23."""

import pytest

from runners.diagnosis import Ending, diagnose
from runners.emulated.death import EngineDeathError
from runners.emulated.deployment import deploy
from runners.emulated.settings import parse, size
from runners.errors import CandidateRejectedError
from tests.emulated_load import settings

NEEDED = ["--model-path", "Llama-3.1-8B", "--emulated-hardware", "A100-80G"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--radix-trees"], "error: unrecognized arguments: --radix-trees"),
        (["--max-num-batched-tokens", "4096"], "unrecognized arguments: --max-num-batched-tokens"),
        (["--chunked-prefill", "128"], "unrecognized arguments: --chunked-prefill"),
        (["--schedule-policy", "banana"], "argument --schedule-policy: invalid choice: 'banana'"),
        (["--chunked-prefill-size", "4k"], "invalid int value: '4k'"),
        (["--max-total-tokens", "4q"], "invalid int value: '4q'"),
    ],
)
def test_a_flag_that_sglang_would_refuse_is_refused_in_its_words(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, and the guilty flag is named."""
    with pytest.raises(SystemExit) as refused:
        parse(NEEDED + words)

    assert refused.value.code == 2
    assert said in capsys.readouterr().err


def test_flags_are_read_as_sglang_reads_them() -> None:
    """Every emulated flag, with the suffixes that some of them take."""
    found = parse(
        [*NEEDED, "--max-total-tokens", "20k", "--context-length", "4Ki", "--page-size", "16",
         "--schedule-policy", "lpm", "--enable-mixed-chunk", "--mem-fraction-static", "0.7"]
    )  # fmt: skip

    assert (found.max_total_tokens, found.context_length, found.page_size) == (20_000, 4096, 16)
    assert (found.schedule_policy, found.enable_mixed_chunk) == ("lpm", True)
    assert found.mem_fraction_static == 0.7
    assert size("1M") == 1_000_000


def test_automatic_values_are_filled_in() -> None:
    """Chunk by memory, memory fraction by chunk, running requests by pool."""
    big, small = deploy(settings()), deploy(settings(emulated_hardware="L4"))

    assert big.settings.chunked_prefill_size == 8192
    assert small.settings.chunked_prefill_size == 4096
    assert big.settings.mem_fraction_static == 0.836
    assert big.max_running_requests == 2048
    assert small.max_running_requests == small.memory.kv_pool_tokens // 2


def test_a_cap_beyond_the_pool_is_lowered_with_a_warning() -> None:
    """To half the tokens, in SGLang's words."""
    found = deploy(settings(max_running_requests=99_999, max_total_tokens=20_000))

    assert found.max_running_requests == 10_000
    assert "was reduced from the requested 99999 to 10000 (per dp worker)" in found.warnings[-1]


def test_a_cap_of_zero_is_one() -> None:
    """SGLang says nothing about it."""
    assert deploy(settings(max_running_requests=0)).max_running_requests == 1


def test_the_pool_is_whole_pages() -> None:
    """12,001 tokens in pages of 16 are 12,000."""
    found = deploy(settings(max_total_tokens=12_001, page_size=16, chunked_prefill_size=256))

    assert found.memory.kv_pool_tokens == 12_000


def test_a_larger_fraction_is_a_larger_pool_and_less_room_to_compute() -> None:
    """The two sides of --mem-fraction-static."""
    plans = [deploy(settings(mem_fraction_static=f)).memory for f in (0.5, 0.7, 0.9)]

    pools, free = [p.kv_pool_tokens for p in plans], [p.free_bytes for p in plans]
    assert pools == sorted(pools)
    assert free == sorted(free, reverse=True)


DEATHS = [
    ({"mem_fraction_static": 0.1}, 137, "Please try to increase --mem-fraction-static."),
    ({"mem_fraction_static": 0.99}, 137, "Capture cuda graph failed: CUDA out of memory."),
    ({"mem_fraction_static": 1.5}, 137, "torch.OutOfMemoryError: CUDA out of memory."),
    ({"model_path": "Llama-3.1-70B"}, 137, "torch.OutOfMemoryError: CUDA out of memory."),
    ({"schedule_policy": "priority"}, 137, "Unknown schedule_policy: policy='priority'"),
    (
        {"schedule_policy": "shortest-prefill-first", "disable_radix_cache": True},
        137,
        "needs the radix cache",
    ),
    ({"chunked_prefill_size": 100, "page_size": 16}, 1, "must be divisible by page_size"),
    ({"schedule_conservativeness": -1.0}, 1, "must be non-negative"),
    ({"context_length": 1_000_000}, 1, "greater than the derived context_length"),
]


@pytest.mark.parametrize(("wanted", "code", "said"), DEATHS)
def test_a_setting_sglang_dies_of_is_died_of(
    wanted: dict[str, object], code: int, said: str
) -> None:
    """With its exit code and its last words; for the search it is a rejected candidate."""
    with pytest.raises(EngineDeathError) as died:
        deploy(settings(**wanted))

    assert died.value.exit_code == code
    assert said in str(died.value)
    assert isinstance(diagnose(Ending(exit_code=code, log=died.value.log)), CandidateRejectedError)


def test_the_least_fraction_that_is_named_is_enough() -> None:
    """Following the advice of the message works."""
    with pytest.raises(EngineDeathError) as died:
        deploy(settings(mem_fraction_static=0.1))
    least = float(str(died.value).partition("above ")[2].partition(" ")[0])

    assert deploy(settings(mem_fraction_static=least)).memory.kv_pool_tokens > 0


def test_switching_chunks_off_moves_the_automatic_memory_fraction() -> None:
    """The reserve then follows --max-prefill-tokens, as in SGLang."""
    chunked = deploy(settings()).settings.mem_fraction_static
    whole = deploy(settings(chunked_prefill_size=-1)).settings.mem_fraction_static

    assert chunked is not None
    assert whole is not None
    assert whole < chunked
