from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives import Interval, Limit, Measurement, ThroughputUnderLimits
from runners import Faulted, Invalid, Measured, Outcome, Rejected
from search_spaces import Candidate, Choice, FloatRange, IntRange, sglang
from tuner.journal import Closed, Journal, Opened, read_journal
from tuner.loop import Loop
from tuner.optuna_strategy import OptunaStrategy
from tuner.plan import BASELINE, Plan, StagePlan
from tuner.steps import Ask, Stop, Try, Wait
from tuner.study import Study
from tuner.trial import Launch, Trial

SPACE = sglang.space(
    [
        Choice(name="schedule_policy", values=("fcfs", "lpm")),
        IntRange(name="max_running_requests", low=2, high=64, log=True),
        IntRange(name="token_budget", low=256, high=4096, step=256),
        FloatRange(name="mem_fraction_static", low=0.4, high=0.95, step=0.05),
    ]
)
PLAN = Plan(
    space=SPACE,
    stages=(
        StagePlan(
            name="policy",
            knobs=("schedule_policy",),
            launches=2,
            at={"max_running_requests": 8},
        ),
        StagePlan(
            name="capacity",
            knobs=("max_running_requests", "token_budget", "mem_fraction_static"),
            launches=14,
        ),
        StagePlan(name="policy again", knobs=("schedule_policy",), launches=1),
    ),
    launches=18,
    budget_s=3600,
)
OBJECTIVE = ThroughputUnderLimits(
    maximize="output_tokens_per_s",
    limits=(
        Limit(metric="ttft_p95_ms", at_most=500),
        Limit(metric="tpot_p95_ms", at_most=40),
    ),
)


def facts(tokens_per_s: float, *, ttft: float = 100, tpot: float = 10) -> Measurement:
    return Measurement(
        output_tokens_per_s=tokens_per_s,
        requests_per_s=1,
        ttft_p95_ms=ttft,
        tpot_p95_ms=tpot,
        measured_requests=100,
        failed_requests=0,
        failed_share=0,
        warmup_requests=10,
        window_s=10,
        prompt_tokens=1000,
        output_tokens=1000,
        intervals={
            "output_tokens_per_s": Interval(
                low=tokens_per_s * 0.98,
                high=tokens_per_s * 1.02,
                confidence=0.95,
                method="made up",
            )
        },
    )


def pretend(candidate: Candidate) -> Outcome:
    """A made-up engine: more running requests give throughput and cost TPOT; memory has walls."""
    values = {
        "schedule_policy": "fcfs",
        "max_running_requests": 64,
        "token_budget": 4096,
        "mem_fraction_static": 0.8,
        **candidate.values(),
    }
    running, memory = int(values["max_running_requests"]), float(values["mem_fraction_static"])
    if memory > 0.9:
        return Rejected(reason="out of memory under load")
    useful = min(running, 80 * memory)
    chunk = int(values["token_budget"])
    cached = 1.2 if values["schedule_policy"] == "lpm" else 1.0
    return Measured(
        measurement=facts(
            100 * cached * useful**0.7 * (chunk / 4096) ** 0.1,
            ttft=2500 / cached / useful + chunk / 40,
            tpot=5 + running * 0.9,
        )
    )


def run(
    study: Study,
    engine: Callable[[Candidate], Outcome],
    path: Path,
    *,
    seed: int = 0,
    stop_after: int = 1000,
) -> Study:
    with Journal(path) as journal:
        if path.stat().st_size == 0:
            journal.opened(
                Opened(
                    study_id="x",
                    at="now",
                    spec={},
                    workload_sha256="0",
                    prefix_sharing=0,
                    tuner_version="0",
                )
            )
        loop = Loop(
            study=study,
            strategy=OptunaStrategy(sampler="tpe", seed=seed),
            objective=OBJECTIVE,
            journal=journal,
            now=lambda: "now",
        )
        loop.give_up_lost()
        for _ in range(stop_after):
            match loop.next_launch():
                case Launch() as launch:
                    loop.ended(launch.number, engine(launch.candidate), took_s=10)
                case Wait():
                    raise AssertionError("one at a time never waits")
                case Stop():
                    break
        else:
            loop.next_launch()  # on its way when the tuner dies
    return loop.study


def test_finds_a_setting_that_beats_the_baseline_and_keeps_the_limits(tmp_path: Path) -> None:
    """The winner keeps limits that the engine's defaults break, and is near the best there is."""
    study = run(Study(plan=PLAN), pretend, tmp_path / "journal")
    best = study.best()

    assert best is not None
    assert not study.trials[0].feasible
    assert best.candidate["schedule_policy"] == "lpm"
    assert isinstance(best.outcome, Measured)
    assert best.outcome.measurement.output_tokens_per_s > 0.8 * 100 * 1.2 * 38**0.7


def test_the_order_is_baseline_policy_capacity_policy_again(tmp_path: Path) -> None:
    """The users' order: each stage starts from what the one before it settled."""
    study = run(Study(plan=PLAN), pretend, tmp_path / "journal")
    stages = list(dict.fromkeys(trial.stage for trial in study.trials))

    assert stages == [BASELINE, "policy", "capacity", "policy again"]
    assert [str(t.candidate) for t in study.trials[:3]] == [
        "engine defaults",
        "max_running_requests=8 schedule_policy=fcfs",
        "max_running_requests=8 schedule_policy=lpm",
    ]
    assert all(t.candidate["schedule_policy"] == "lpm" for t in study.trials[3:-1])
    assert study.trials[-1].candidate["schedule_policy"] == "fcfs"


def test_no_candidate_is_launched_twice(tmp_path: Path) -> None:
    """A launch costs minutes: what is known, rejected settings too, is never asked again."""
    study = run(Study(plan=PLAN), pretend, tmp_path / "journal")
    names = [trial.candidate.fingerprint for trial in study.trials]

    assert len(names) == len(set(names)) == PLAN.launches


def test_lists_too_long_to_try_in_full_are_sampled_from_end_to_end(tmp_path: Path) -> None:
    """With more combinations than launches, the first values listed are not all that is tried."""
    lists = sglang.space(
        [
            Choice(name="max_running_requests", values=(8, 16, 32, 64)),
            Choice(name="token_budget", values=(512, 1024, 2048, 4096)),
        ]
    )
    stage = StagePlan(name="all", knobs=lists.names, launches=8)
    plan = Plan(space=lists, stages=(stage,), launches=9, budget_s=3600)
    study = run(Study(plan=plan), pretend, tmp_path / "journal")

    assert len(study.trials) == 9
    for name, tried in (("max_running_requests", 4), ("token_budget", 4)):
        assert len({t.candidate[name] for t in study.trials[1:]}) == tried


@pytest.mark.parametrize(
    ("knob", "least"),
    [
        (FloatRange(name="mem_fraction_static", low=0.4, high=0.9, step=0.0025), 12),
        (FloatRange(name="mem_fraction_static", low=0.4, high=0.92, step=0.05), 8),
        (FloatRange(name="mem_fraction_static", low=0.5001, high=0.501), 12),
        (FloatRange(name="schedule_conservativeness", low=0.0001, high=1.0, log=True), 12),
    ],
)
def test_a_range_of_any_grain_is_searched_on_its_steps(
    tmp_path: Path, knob: FloatRange, least: int
) -> None:
    """Fine steps, steps that miss the upper end, and narrow ranges give many values, all valid."""
    stage = StagePlan(name="all", knobs=(knob.name,), launches=12)
    plan = Plan(space=sglang.space([knob]), stages=(stage,), launches=13, budget_s=3600)
    study = run(Study(plan=plan), pretend, tmp_path / "journal")
    values = [float(t.candidate[knob.name]) for t in study.trials[1:]]

    assert len(set(values)) >= least
    assert all(value in knob and value <= knob.top for value in values)
    if knob.step is not None:
        steps = [(value - knob.low) / knob.step for value in values]
        assert all(abs(s - round(s)) < 1e-8 for s in steps)


def test_a_tie_of_policies_keeps_the_first_listed(tmp_path: Path) -> None:
    """Policies that cannot be told apart are called a tie, and the plain one is kept."""

    def same_policies(candidate: Candidate) -> Outcome:
        others = {k: v for k, v in candidate.items if k != "schedule_policy"}
        return pretend(Candidate.of(others))

    study = run(Study(plan=PLAN), same_policies, tmp_path / "journal", stop_after=4)

    (decision,) = study.decisions()
    assert decision.values == {"schedule_policy": "fcfs"}
    assert "tie" in decision.because


@pytest.mark.parametrize("killed_after", [0, 1, 2, 3, 7, 16, 17])
def test_a_killed_study_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, killed_after: int
) -> None:
    """Killed at any launch and run again: same settings, only the lost launch is repeated."""
    undisturbed = run(Study(plan=PLAN), pretend, tmp_path / "one")

    run(Study(plan=PLAN), pretend, tmp_path / "two", stop_after=killed_after)
    history = read_journal(tmp_path / "two", OBJECTIVE)
    assert [p.number for p in history.pending] == [killed_after]
    resumed = run(
        Study(plan=PLAN, trials=history.trials, pending=history.pending),
        pretend,
        tmp_path / "two",
    )

    measured = [t.candidate.fingerprint for t in resumed.trials]
    assert measured == [t.candidate.fingerprint for t in undisturbed.trials]
    assert [launch.number for launch in resumed.lost] == [killed_after]


def test_a_journal_cut_in_mid_line_keeps_what_came_before(tmp_path: Path) -> None:
    """A crash while a line is written costs that line, nothing else."""
    path = tmp_path / "journal"
    run(Study(plan=PLAN), pretend, path, stop_after=5)
    whole = read_journal(path, OBJECTIVE)
    with path.open("ab") as torn:
        torn.write(b'{"event": "finished", "numb')

    assert read_journal(path, OBJECTIVE) == whole
    with Journal(path) as journal:
        journal.lost(5, at="now")
    assert [launch.number for launch in read_journal(path, OBJECTIVE).lost] == [5]


def test_a_machine_that_fails_three_times_ends_the_study(tmp_path: Path) -> None:
    """Faults are retried, teach nothing, use no budget, and are not retried for ever."""
    study = run(Study(plan=PLAN), lambda _: Faulted(reason="no GPU"), tmp_path / "journal")

    assert len(study.trials) == 3
    step = study.next_step()
    assert isinstance(step, Stop)
    assert step.fault
    assert "3 machine faults in a row; the last: no GPU" in step.reason


def test_a_lasting_fault_ends_the_study_at_once(tmp_path: Path) -> None:
    """A missing model will not appear by trying again."""
    lasting = Faulted(reason="no model at /nowhere", lasting=True)
    study = run(Study(plan=PLAN), lambda _: lasting, tmp_path / "journal")

    assert len(study.trials) == 1
    assert study.next_step() == Stop("no model at /nowhere", fault=True)


def test_a_study_stopped_by_its_machine_goes_on_once_that_is_mended(tmp_path: Path) -> None:
    """The same command after a repair tries again, instead of repeating the old verdict."""
    path = tmp_path / "journal"
    run(Study(plan=PLAN), lambda _: Faulted(reason="no driver", lasting=True), path)
    with Journal(path) as journal:
        journal.closed(Closed(at="now", verdict="faulted", reason="no driver"))
    history = read_journal(path, OBJECTIVE)
    stopped = Study(plan=PLAN, trials=history.trials, earlier=history.earlier)

    assert stopped.next_step() == Try(BASELINE, Candidate.of({}))
    assert run(stopped, pretend, path).best() is not None


def test_numbers_that_can_never_be_trusted_end_the_study(tmp_path: Path) -> None:
    """When no launch can be believed it is the set-up, and the budget is not burnt on it."""
    busy = iter(range(1000))
    study = run(
        Study(plan=PLAN),
        lambda _: Invalid(reason=f"the client used {next(busy)} ms too long"),
        tmp_path / "journal",
    )

    assert len(study.trials) == 8
    assert study.next_step() == Stop(
        "none of 8 launches could be measured; the first: the client used 0 ms too long",
        fault=True,
    )


def test_an_untrusted_number_is_measured_again_and_never_wins(tmp_path: Path) -> None:
    """An invalid launch is repeated once, then left without a score."""
    seen: list[Candidate] = []

    def saturated_at_first(candidate: Candidate) -> Outcome:
        seen.append(candidate)
        return Invalid(reason="the client was saturated") if len(seen) <= 2 else pretend(candidate)

    study = run(Study(plan=PLAN), saturated_at_first, tmp_path / "journal")

    assert seen[0] == seen[1] == Candidate.of({})
    assert seen[2] != Candidate.of({})
    assert study.best() not in study.trials[:2]


def test_an_engine_that_never_runs_ends_the_study_with_the_reason(tmp_path: Path) -> None:
    """When every setting dies of the same cause, it is not the settings, and no GPU is wasted."""
    study = run(Study(plan=PLAN), lambda _: Rejected(reason="bad flag --x"), tmp_path / "journal")

    assert len(study.trials) == 3
    assert study.best() is None
    assert study.next_step() == Stop(
        "none of the first 3 settings ran; the first: bad flag --x", fault=True
    )


def test_impossible_limits_crown_nobody_and_name_the_nearest(tmp_path: Path) -> None:
    """Without a feasible setting there is no winner, only the one that breaks its limits least."""

    def slow(_: Candidate) -> Outcome:
        return Measured(measurement=facts(1000, ttft=9000))

    study = run(Study(plan=PLAN), slow, tmp_path / "journal")

    assert study.best() is None
    nearest = study.nearest()
    assert nearest is not None
    assert nearest.score is not None
    assert [str(m) for m in nearest.score.broken] == ["ttft_p95_ms = 9000 breaks <= 500"]


def test_two_launches_side_by_side_are_different(tmp_path: Path) -> None:
    """On a cluster the next launch is chosen knowing which are on their way."""
    path = tmp_path / "journal"
    path.touch()
    with Journal(path) as journal:
        loop = Loop(
            study=Study(plan=PLAN),
            strategy=OptunaStrategy(sampler="tpe", seed=0),
            objective=OBJECTIVE,
            journal=journal,
            now=lambda: "now",
            parallel=2,
        )
        baseline = loop.next_launch()
        assert isinstance(baseline, Launch)
        assert loop.next_launch() == Wait()  # every gain is counted from the baseline
        loop.ended(baseline.number, pretend(baseline.candidate), took_s=1)
        one, other = loop.next_launch(), loop.next_launch()

    assert isinstance(one, Launch)
    assert isinstance(other, Launch)
    assert one.candidate != other.candidate


OUTCOMES = st.one_of(
    st.just(Faulted(reason="no gpu")),
    st.just(Invalid(reason="noise")),
    st.just(Rejected(reason="oom")),
    st.floats(1, 1e6).map(lambda v: Measured(measurement=facts(v))),
    st.floats(501, 1e4).map(lambda v: Measured(measurement=facts(100, ttft=v))),
)


@given(st.lists(OUTCOMES, max_size=40))
@settings(deadline=None, max_examples=60)
def test_whatever_happens_the_budget_holds(outcomes: list[Outcome]) -> None:
    """No sequence of outcomes makes a study settle more candidates than its budget."""
    study = Study(plan=PLAN)
    for number, outcome in enumerate(outcomes):
        match study.next_step():
            case Try(stage=stage, candidate=candidate):
                launch = Launch(number=number, stage=stage, candidate=candidate)
            case Ask(stage=part, base=base):
                values = {"token_budget": 256, "mem_fraction_static": 0.5}
                mine = base.with_values({**values, "max_running_requests": number + 2})
                launch = Launch(number=number, stage=part.name, candidate=mine)
            case Stop() | Wait():
                break
        score = OBJECTIVE.judge(outcome.measurement) if isinstance(outcome, Measured) else None
        study = study.with_trial(Trial(launch=launch, outcome=outcome, score=score, took_s=1))

    assert study.used <= PLAN.launches
    assert study.best() is None or study.best() in [t for t in study.trials if t.feasible]


def test_the_hours_are_kept() -> None:
    """Engine time is a budget too."""
    launch = Launch(number=0, stage=BASELINE, candidate=Candidate.of({}))
    outcome = Measured(measurement=facts(1))
    trial = Trial(
        launch=launch, outcome=outcome, score=OBJECTIVE.judge(outcome.measurement), took_s=4000
    )

    step = Study(plan=PLAN, trials=(trial,)).next_step()
    assert step == Stop("the time budget of 1 hours is used")
