"""The search keeps away from where settings stop running."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from objectives import Limit, ThroughputUnderLimits
from runners import Measured, Outcome, Rejected
from runners.cause import Cause, Direction
from runners.diagnosis import diagnose
from runners.effective import effective_configuration
from runners.emulated.death import EngineDeathError
from runners.emulated.deployment import Deployment, deploy
from runners.emulated.settings import Settings
from runners.emulated.virtual import emulate
from runners.ending import Ending
from runners.errors import CandidateRejectedError
from runners.measure import measurement_of
from runners.records import ClientReport
from runners.workload import PlannedRequest
from search_spaces import Candidate, Choice, FloatRange, IntRange, Parameter, Value, sglang
from tests.emulated_load import fixed_plan
from tests.test_study import facts
from tuner.journal import Journal, Opened
from tuner.loop import Loop
from tuner.optuna_strategy import OptunaStrategy
from tuner.plan import Plan, StagePlan
from tuner.study import Study
from tuner.trial import Launch, Trial
from tuner.walls import MOST_HITS, Walls, reached, walls_of

SPACE = sglang.space(
    [
        IntRange(name="max_running_requests", low=4, high=256, log=True),
        IntRange(name="token_budget", low=512, high=16384, step=512),
        FloatRange(name="mem_fraction_static", low=0.3, high=0.99, step=0.01),
    ]
)
LOAD: dict[str, Direction] = {
    "mem_fraction_static": "lower",
    "token_budget": "lower",
    "max_running_requests": "lower",
}
GRAPHS: dict[str, Direction] = {"mem_fraction_static": "lower", "max_running_requests": "lower"}
START: dict[str, Direction] = {"mem_fraction_static": "raise"}


def setting(mem: float, chunk: int = 4096, running: int = 64) -> dict[str, Value]:
    return {
        "mem_fraction_static": mem,
        "token_budget": chunk,
        "max_running_requests": running,
    }


def trial(values: Mapping[str, Value], outcome: Outcome) -> Trial:
    launch = Launch(number=0, stage="all", candidate=Candidate.of(values))
    return Trial(launch=launch, outcome=outcome, score=None, took_s=1)


def hit(values: Mapping[str, Value], directions: Mapping[str, Direction]) -> Trial:
    out = Rejected(reason="no memory", cause=Cause.LOAD_MEMORY, directions=directions)
    return trial(values, out)


def ran(values: Mapping[str, Value], **effective: Value) -> Trial:
    return trial(values, Measured(measurement=facts(100), effective=effective))


def forbids(walls: Walls, values: Mapping[str, Value]) -> bool:
    return walls.forbid(Candidate.of(values))


def test_without_a_hit_there_is_no_wall() -> None:
    """Nothing is kept from a launch before anything was rejected for memory."""
    trials = [ran(setting(0.8)), trial(setting(0.9), Rejected(reason="a crash nobody knows"))]

    assert not forbids(walls_of(SPACE, trials), setting(0.99, 16384, 256))


def test_what_is_harsher_than_a_hit_is_never_tried() -> None:
    """One rejection settles every setting that needs at least as much memory; no other."""
    walls = walls_of(SPACE, [ran(setting(0.5)), hit(setting(0.9, 8192, 64), LOAD)])

    assert forbids(walls, setting(0.9, 8192, 64))
    assert forbids(walls, setting(0.95, 16384, 256))
    assert not forbids(walls, setting(0.69, 6144, 8))


def test_what_is_harsher_than_a_mix_of_hits_is_never_tried() -> None:
    """Memory adds up: between two hits, with a bit more of one knob for a bit less of another."""
    trials = [
        ran(setting(0.9, 8192, 256)),
        hit(setting(0.98, 512, 64), LOAD),
        hit(setting(0.8, 16384, 64), LOAD),
    ]
    walls = walls_of(SPACE, trials[:2])
    both = walls_of(SPACE, trials[1:])

    assert not forbids(walls, setting(0.9, 8192, 64))
    assert forbids(both, setting(0.9, 8448, 64))
    assert reached((0.5, 0.5), [(0.0, 1.0), (1.0, 0.0)])
    assert not reached((0.5, 0.4), [(0.0, 1.0), (1.0, 0.0)])
    assert not reached((0.5, 0.5), [(0.0, 1.0)])


def test_the_start_up_wall_is_on_the_other_side() -> None:
    """Too little for the KV cache says the opposite of too much: lower is hopeless, higher not."""
    walls = walls_of(SPACE, [ran(setting(0.8)), hit(setting(0.4), START)])

    assert forbids(walls, setting(0.35, 512, 4))
    assert not forbids(walls, setting(0.61, 16384, 256))
    assert forbids(walls, setting(0.59))


def test_after_the_first_hit_the_search_goes_half_way_at_most() -> None:
    """From what ran to what did not, so that the second hit comes late if ever."""
    walls = walls_of(SPACE, [ran(setting(0.8)), hit(setting(0.9), LOAD)])

    assert not forbids(walls, setting(0.84))
    assert forbids(walls, setting(0.86))


def test_after_two_hits_only_what_is_known_to_run_is_tried() -> None:
    """What is nowhere harsher than a setting that ran; half way is not ventured any more."""
    trials = [ran(setting(0.8)), hit(setting(0.9), LOAD), hit(setting(0.86), LOAD)]
    walls = walls_of(SPACE, trials)

    assert not forbids(walls, setting(0.8))
    assert not forbids(walls, setting(0.5, 512, 4))
    assert forbids(walls, setting(0.81))
    assert forbids(walls, setting(0.5, 4608))


def test_a_mix_of_settings_that_ran_is_not_known_to_run() -> None:
    """Large chunks with few requests and small ones with many may run, and their middle die."""
    trials = [
        ran(setting(0.9, 16384, 8)),
        ran(setting(0.9, 512, 256)),
        hit(setting(0.97), LOAD),
        hit(setting(0.98), LOAD),
    ]

    assert forbids(walls_of(SPACE, trials), setting(0.9, 8192, 128))


def test_death_at_graph_capture_and_under_load_is_one_wall() -> None:
    """Both are too much memory: a hit of each is two hits, whatever the chunk was."""
    trials = [ran(setting(0.8)), hit(setting(0.98, 512), GRAPHS), hit(setting(0.9), LOAD)]
    walls = walls_of(SPACE, trials)

    assert len(walls.walls) == 1
    assert len(walls.walls[0].hits) == MOST_HITS
    assert forbids(walls, setting(0.82))
    assert not forbids(walls, setting(0.8))


def test_a_knob_left_to_the_engine_counts_as_what_the_engine_took() -> None:
    """The defaults that ran speak for settings, and settings that lean on them are judged."""
    trials = [
        ran({}, mem_fraction_static=0.85, token_budget=4096, max_running_requests=2048),
        hit(setting(0.95), LOAD),
        hit(setting(0.94), LOAD),
    ]
    walls = walls_of(SPACE, trials)

    assert not forbids(walls, setting(0.85, 4096, 256))
    assert not forbids(walls, {"max_running_requests": 8})
    assert forbids(walls, {"token_budget": 8192})


def test_a_hit_that_leaves_the_knob_to_the_engine_is_left_out() -> None:
    """Nobody knows where it lay, so it settles nothing."""
    walls = walls_of(SPACE, [hit({"max_running_requests": 8}, LOAD)] * 3)

    assert walls.walls == ()


def test_knobs_that_are_not_searched_do_not_count() -> None:
    """A wall is made of what can be turned."""
    chunk = sglang.space([IntRange(name="token_budget", low=512, high=16384, step=512)])
    walls = walls_of(chunk, [hit({"token_budget": 8192}, LOAD)])

    assert forbids(walls, {"token_budget": 8192})
    assert not forbids(walls, {"token_budget": 2048})


def test_a_setting_that_ran_beyond_a_hit_is_no_proof() -> None:
    """When one setting ran and a milder one died, the harsher one was luck."""
    trials = [ran(setting(0.9)), ran(setting(0.7)), *[hit(setting(0.85), LOAD)] * 2]
    walls = walls_of(SPACE, trials)

    assert forbids(walls, setting(0.84))
    assert not forbids(walls, setting(0.7))


def test_while_nothing_runs_each_hit_halves_the_range_left() -> None:
    """Without a setting that ran the far half of what is left is all that is tried."""
    trials = [hit(setting(0.3 + 0.69 * share), START) for share in (0.0, 0.5)]
    walls = walls_of(SPACE, trials)

    assert forbids(walls, setting(0.81))
    assert not forbids(walls, setting(0.83))


def test_between_two_walls_with_nothing_that_runs_the_middle_is_tried() -> None:
    """Walls that face each other leave the middle half of the gap, never nothing."""
    mem = sglang.space([FloatRange(name="mem_fraction_static", low=0.0, high=0.99)])
    lower: dict[str, Direction] = {"mem_fraction_static": "lower"}
    trials = [
        *[hit({"mem_fraction_static": v}, START) for v in (0.1, 0.4)],
        *[hit({"mem_fraction_static": v}, lower) for v in (0.9, 0.8)],
    ]
    walls = walls_of(mem, trials)
    free = [v / 100 for v in range(99) if not forbids(walls, {"mem_fraction_static": v / 100})]

    assert 0.49 < min(free) < 0.52
    assert 0.68 < max(free) < 0.71
    assert all(b - a < 0.011 for a, b in pairwise(free))


def test_a_choice_of_numbers_has_walls_too() -> None:
    """A list of numbers is as much a knob as a range is."""
    space = sglang.space([Choice(name="token_budget", values=(512, 2048, 8192))])
    walls = walls_of(space, [hit({"token_budget": 2048}, LOAD)])

    assert [forbids(walls, {"token_budget": v}) for v in (512, 2048, 8192)] == [False, True, True]


OBJECTIVE = ThroughputUnderLimits(
    maximize="output_tokens_per_s", limits=(Limit(metric="ttft_p95_ms", at_most=3000),)
)
MACHINES = {  # lowest mem_fraction_static searched: well below what the weights take
    ("RTX4090", "Llama-3.1-8B"): 0.5,
    ("A100-40G", "Llama-3.1-8B"): 0.3,
    ("L4", "Qwen2.5-7B"): 0.5,
}
FLAGS = {"token_budget": "chunked_prefill_size"}
Machine = tuple[str, str]


def plan_for(machine: Machine) -> Plan:
    knobs: list[Parameter] = [
        Choice(name="schedule_policy", values=("fcfs", "lpm")),
        IntRange(name="max_running_requests", low=4, high=256, log=True),
        IntRange(name="token_budget", low=512, high=16384, step=512),
        FloatRange(name="mem_fraction_static", low=MACHINES[machine], high=0.99, step=0.01),
    ]
    policy, *sizes = (knob.name for knob in knobs)
    stages = (
        StagePlan(name="policy", knobs=(policy,), launches=2, at={"max_running_requests": 8}),
        StagePlan(name="capacity", knobs=tuple(sizes), launches=20),
        StagePlan(name="policy again", knobs=(policy,), launches=1),
    )
    return Plan(space=sglang.space(knobs), stages=stages, launches=24, budget_s=1e6)


def emulated(
    machine: Machine, requests: list[PlannedRequest], seed: int
) -> Callable[[Candidate], Outcome]:
    """An engine in virtual time, whose death is told as a launcher would tell it."""
    hardware, model = machine

    def launch(candidate: Candidate) -> Outcome:
        values = {FLAGS.get(name, name): value for name, value in candidate.items}
        known = Settings(model_path=model, emulated_hardware=hardware, **values)  # type: ignore[arg-type]
        ready = False
        try:
            deployment = deploy(known)
            ready = True
            return measured(deployment, candidate)
        except EngineDeathError as death:
            error = diagnose(Ending(exit_code=death.exit_code, log=death.log, ready=ready))
            assert isinstance(error, CandidateRejectedError)
            return Rejected(reason=str(error), cause=error.cause, directions=error.directions)
        except CandidateRejectedError as error:
            return Rejected(reason=str(error), cause=error.cause, directions=error.directions)

    def measured(deployment: Deployment, candidate: Candidate) -> Measured:
        run = emulate(deployment.settings, requests, seed=seed)
        report = ClientReport(wall_s=1, cpu_s=0.1, loop_lag_p99_ms=1, connections=1)
        info = {
            "schedule_policy": deployment.policy,
            "chunked_prefill_size": deployment.settings.chunked_prefill_size,
            "mem_fraction_static": deployment.settings.mem_fraction_static,
            "internal_states": [
                {"effective_max_running_requests_per_dp": deployment.max_running_requests}
            ],
        }
        return Measured(
            measurement=measurement_of(
                run.records, report, engine=run.window, gpu=None, speed=1.0, startup_s=1.0
            ),
            effective=effective_configuration(info, candidate),
        )

    return launch


def tuned(machine: Machine, seed: int, folder: Path) -> Study:
    engine = emulated(machine, fixed_plan(32, rounds=1, lengths=(512, 32)), seed)
    opened = Opened(
        study_id="x",
        at="now",
        spec={},
        workload_sha256="0",
        prefix_sharing=0,
        tuner_version="0",
    )
    with Journal(folder / f"{seed}.jsonl") as journal:
        journal.opened(opened)
        loop = Loop(
            study=Study(plan=plan_for(machine)),
            strategy=OptunaStrategy(sampler="tpe", seed=seed),
            objective=OBJECTIVE,
            journal=journal,
            now=lambda: "now",
        )
        while isinstance(launch := loop.next_launch(), Launch):
            loop.ended(launch.number, engine(launch.candidate), took_s=1)
    return loop.study


def hits(study: Study, way: Direction) -> int:
    outcomes = [t.outcome for t in study.trials if isinstance(t.outcome, Rejected)]
    return sum(o.directions.get("mem_fraction_static") == way for o in outcomes)


def both_walls_are_left(machine: Machine, seeds: range, folder: Path) -> None:
    studies = [tuned(machine, seed, folder) for seed in seeds]
    low, high = ([hits(study, way) for study in studies] for way in ("raise", "lower"))

    assert max(low) <= MOST_HITS, low
    assert max(high) <= MOST_HITS, high
    assert sum(low) > 0
    assert sum(high) > 0
    assert all(len(study.trials) == 24 for study in studies)


def test_both_memory_walls_are_left_after_two_hits_each(tmp_path: Path) -> None:
    """No room for the KV cache below, out of memory above: two launches are lost to each."""
    both_walls_are_left(("A100-40G", "Llama-3.1-8B"), range(1), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_both_memory_walls_are_left_whatever_the_seed(machine: Machine, tmp_path: Path) -> None:
    """On machines with much room between the walls and with little, for every seed."""
    both_walls_are_left(machine, range(10), tmp_path)
