"""How long the emulated engine's steps take, against figures one can look up."""

import pytest

from runners.emulated.hardware import HARDWARE, hardware_named
from runners.emulated.models import MODELS, model_named
from runners.emulated.step_cost import Constants, StepCost


def decode_s(cost: StepCost, requests: int, context: int = 512) -> float:
    return cost.seconds(
        new_tokens=0,
        attended=0.0,
        decode_requests=requests,
        context_tokens=requests * context,
        sampled=requests,
        graph=True,
    )


def prefill_s(cost: StepCost, tokens: int) -> float:
    return cost.seconds(
        new_tokens=tokens,
        attended=tokens * 256.0,
        decode_requests=0,
        context_tokens=0,
        sampled=1,
        graph=False,
    )


def cost_of(model: str, hardware: str, tp: int = 1) -> StepCost:
    return StepCost.of(model_named(model), hardware_named(hardware), tp)


@pytest.mark.parametrize(
    ("hardware", "low_ms", "high_ms"), [("A100-80G", 9, 12), ("H100-80G", 6, 8)]
)
def test_an_8b_model_decodes_alone_at_the_speed_of_its_memory(
    hardware: str, low_ms: float, high_ms: float
) -> None:
    """About 11 ms a token on an A100 and 7 ms on an H100: the time to read 15 GB."""
    assert low_ms < decode_s(cost_of("Llama-3.1-8B", hardware), 1) * 1e3 < high_ms


def test_an_8b_model_prefills_near_12000_tokens_a_second_on_an_a100() -> None:
    """Prefill is bound by compute."""
    assert 10_500 < 8192 / prefill_s(cost_of("Llama-3.1-8B", "A100-80G"), 8192) < 13_500


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("model", MODELS)
def test_a_fuller_batch_costs_more_a_step_and_less_a_token(model: str, hardware: str) -> None:
    """The reason to batch at all, and the reason for a limit on the time per token."""
    cost = cost_of(model, hardware)
    steps = [decode_s(cost, n) for n in (1, 8, 64, 256)]

    assert steps == sorted(steps)
    assert steps[3] / 256 < steps[2] / 64 < steps[1] / 8 < steps[0]


def test_more_gpus_are_faster_but_not_by_their_number() -> None:
    """All-reduces take their share."""
    one, four = (decode_s(cost_of("Llama-3.1-70B", "H100-80G", tp), 32) for tp in (1, 4))

    assert one / 4 < four < one


def test_a_small_batch_without_a_cuda_graph_waits_for_the_host() -> None:
    """Launching a small model's layers one by one takes longer than computing them."""
    cost = cost_of("Qwen2.5-0.5B", "H100-80G")

    assert prefill_s(cost, 1) > 2 * decode_s(cost, 1)


def test_the_constants_can_be_calibrated() -> None:
    """Half the reached bandwidth is nearly twice the time of a decode step."""
    model, hardware = model_named("Llama-3.1-8B"), hardware_named("A100-80G")
    slow = StepCost.of(model, hardware, constants=Constants(bandwidth_scale=0.5))

    assert 1.7 < decode_s(slow, 1) / decode_s(StepCost.of(model, hardware), 1) < 2.0


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    """A typo teaches what there is."""
    with pytest.raises(ValueError, match=r"one of A100-80G, .*RTX4090, found 'A1000'"):
        hardware_named("A1000")
    with pytest.raises(ValueError, match=r"one of Llama-3.1-8B, .*found 'gpt2'"):
        model_named("gpt2")


def test_a_model_is_known_by_its_published_id_too() -> None:
    """So that one study file serves the emulated and the real engine."""
    assert model_named("meta-llama/Llama-3.1-8B-Instruct") is model_named("Llama-3.1-8B")
