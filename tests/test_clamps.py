"""A request that comes out as one already measured is one point, and is told as what it was."""

import pytest

from runners import Measured
from search_spaces import Candidate, Choice, FloatRange, IntRange, Parameter, SearchSpace, Value
from tests.test_study import OBJECTIVE, PLAN, facts
from tuner.clamps import as_it_ran, clamps, comes_out_as, on_steps
from tuner.optuna_strategy import OptunaStrategy
from tuner.plan import BASELINE, Plan, StagePlan
from tuner.progress import result
from tuner.steps import Ask, Try
from tuner.study import Study
from tuner.trial import Launch, Trial


def trial(
    asked: dict[str, Value], effective: dict[str, Value], *, number: int = 0, stage: str = "all"
) -> Trial:
    outcome = Measured(measurement=facts(100), effective={**asked, **effective})
    return Trial(
        launch=Launch(number=number, stage=stage, candidate=Candidate.of(asked)),
        outcome=outcome,
        score=OBJECTIVE.judge(outcome.measurement),
        took_s=1,
    )


LOWERED = trial({"max_running_requests": 256, "token_budget": 512}, {"max_running_requests": 97})
RAISED = trial({"page_size": 1, "token_budget": 512}, {"page_size": 16})


@pytest.mark.parametrize(
    ("asked", "same"),
    [
        ({"max_running_requests": 97, "token_budget": 512}, True),
        ({"max_running_requests": 128, "token_budget": 512}, True),
        ({"max_running_requests": 4096, "token_budget": 512}, True),
        ({"max_running_requests": 96, "token_budget": 512}, False),
        ({"max_running_requests": 128, "token_budget": 1024}, False),
        ({"max_running_requests": 128}, False),
        ({"token_budget": 512}, False),
    ],
)
def test_what_is_lowered_catches_all_that_ask_for_more(
    asked: dict[str, Value], same: bool
) -> None:
    """256 came out as 97, so 128 does too when nothing else differs; 96 does not."""
    assert comes_out_as(Candidate.of(asked), LOWERED) is same


@pytest.mark.parametrize(("size", "same"), [(1, True), (8, True), (16, True), (32, False)])
def test_what_is_raised_catches_all_that_ask_for_less(size: int, same: bool) -> None:
    """1 came out as 16, so 8 does too; 32 does not."""
    candidate = Candidate.of({"page_size": size, "token_budget": 512})

    assert comes_out_as(candidate, RAISED) is same


def test_only_numbers_are_clamped() -> None:
    """A policy that acts as another, a switch, and a knob not read back are no clamps."""
    odd = trial(
        {"schedule_policy": "lpm", "--enable-x": True, "token_budget": 512},
        {"schedule_policy": "fcfs", "--enable-x": False},
    )

    assert clamps(odd) == ()
    assert not comes_out_as(odd.candidate.with_values({"schedule_policy": "fcfs"}), odd)


def test_a_clamp_is_shown_where_the_launch_is() -> None:
    """The line of a launch says which setting came out otherwise."""
    assert result(LOWERED).endswith("; max_running_requests 256 -> 97 (clamped)")


@pytest.mark.parametrize(
    ("knob", "told"),
    [
        (IntRange(name="max_running_requests", low=8, high=512, log=True), 97),
        (IntRange(name="max_running_requests", low=8, high=512, step=8), 256),
        (IntRange(name="max_running_requests", low=128, high=512), 256),
        (Choice(name="max_running_requests", values=(97, 256)), 97),
        (Choice(name="max_running_requests", values=(64, 256)), 256),
    ],
)
def test_the_sampler_is_told_what_ran_where_it_could_have_asked_for_it(
    knob: Parameter, told: int
) -> None:
    """Off the knob's range or steps the requested value stands in."""
    assert as_it_ran(LOWERED, {knob.name: knob}) == {"max_running_requests": told}


def test_a_fraction_off_its_steps_is_not_told() -> None:
    """Steps of a float count up to rounding."""
    knob = FloatRange(name="mem_fraction_static", low=0.4, high=0.9, step=0.05)

    assert on_steps(0.7, knob)
    assert not on_steps(0.72, knob)
    assert not on_steps(0.95, knob)
    assert on_steps(0.72, FloatRange(name="mem_fraction_static", low=0.4, high=0.9))


def study_with(stage: StagePlan, clamped: Trial) -> Study:
    plan = Plan(space=PLAN.space, stages=(stage,), launches=9, budget_s=3600)
    return Study(plan=plan, trials=(trial({}, {}, stage=BASELINE), clamped))


@pytest.mark.parametrize("seed", range(5))
def test_the_strategy_asks_for_no_clamped_setting_again(seed: int) -> None:
    """With requests above 3 lowered to 3, 2 and 3 are all there is; 3 was measured."""
    stage = StagePlan(name="all", knobs=("max_running_requests",), launches=8)
    clamped = trial({"max_running_requests": 64}, {"max_running_requests": 3}, number=1)
    study = study_with(stage, clamped)
    step = study.next_step()
    assert isinstance(step, Ask)

    candidate = OptunaStrategy(sampler="tpe", seed=seed).ask(study, step)

    assert candidate == Candidate.of({"max_running_requests": 2})


def test_a_list_skips_what_would_come_out_the_same() -> None:
    """Of 2, 3, 16 and 64, when 64 came out as 3, only 2 is left to launch."""
    knob = Choice(name="max_running_requests", values=(64, 16, 3, 2))
    stage = StagePlan(name="all", knobs=(knob.name,), launches=8)
    plan = Plan(space=SearchSpace(parameters=(knob,)), stages=(stage,), launches=9, budget_s=3600)
    clamped = trial({knob.name: 64}, {knob.name: 3}, number=1)
    study = Study(plan=plan, trials=(trial({}, {}, stage=BASELINE), clamped))

    assert study.next_step() == Try("all", Candidate.of({knob.name: 2}))
