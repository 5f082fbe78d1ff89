"""The [search] table of a study file: knobs, their ranges, and the stages they are searched in."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from runners.sglang import OUR_FLAGS
from runners.spec import GPU_SIZES, NonNegativeInt, WorkloadSpec
from runners.table import Table
from search_spaces import Candidate, Choice, FloatRange, IntRange, Parameter, Value, sglang
from tuner.plan import BASELINE

POLICY = "schedule_policy"
CAPACITY = "capacity"  # the stage that takes all launches which no other needs
MOST_WAITING = 128  # beyond it SGLang's lpm and hrrn act as fcfs, and comparing them is void


class Range(Table):
    """The values of a knob between two ends."""

    low: int | float
    high: int | float
    step: int | float | None = None
    log: bool = False


class Stage(Table):
    """A part of the search: the knobs it moves, the others stay where earlier stages left them.

    *at* moves further knobs for this stage only, to where its own knobs make a difference.
    """

    name: str = Field(min_length=1)
    knobs: tuple[str, ...] = Field(min_length=1)
    launches: PositiveInt
    at: dict[str, bool | int | float | str] = Field(default_factory=dict)


class SearchTable(Table):
    """The knobs, their ranges, and how much may be spent."""

    knobs: dict[str, tuple[bool | int | float | str, ...] | Range] = Field(min_length=1)
    launches: PositiveInt = 24
    hours: PositiveFloat = 12.0
    seed: NonNegativeInt = 0
    sampler: Literal["tpe", "gp"] = "tpe"
    stages: tuple[Stage, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, values in self.knobs.items():
            ends = (values.low, values.high) if isinstance(values, Range) else values
            settings = [Candidate.of({name: end}) for end in ends]
            problems = [p for setting in settings for p in sglang.value_problems(setting)]
            if found := _not_to_be_varied(name) or sglang.name_problems(name) or problems:
                raise ValueError(f"knobs.{name}: {'; '.join(found)}")
            parameter(name, values)  # a range that is empty is refused where it is written
        self._check_flags()
        self._check_names()
        for stage in self.stages:
            self._check_stage(stage)
        return self

    def _check_flags(self) -> None:
        for name in self.knobs:
            for flag in sglang.flag_names(name):
                if flag != name and flag in self.knobs:
                    raise ValueError(f"knobs.{flag}: the knob {name} sets it; keep one of the two")

    def _check_names(self) -> None:
        names = [BASELINE, *(stage.name for stage in self.stages)]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"each stage needs a name of its own, and {BASELINE!r} is that of the first "
                    f"launch; found {name!r} {names.count(name)} times"
                )

    def _check_stage(self, stage: Stage) -> None:
        for name in (*stage.knobs, *stage.at):
            if name not in self.knobs:
                raise ValueError(
                    f"stage {stage.name!r} names the knob {name!r}, which [search.knobs] lacks"
                )
        for name, value in stage.at.items():
            if value not in (knob := parameter(name, self.knobs[name])):
                raise ValueError(
                    f"stage {stage.name!r} must hold {name} at one of its values ({knob}), "
                    f"found {value!r}"
                )


def _not_to_be_varied(name: str) -> list[str]:
    if name in OUR_FLAGS:
        return ["the tuner sets it itself"]
    if any(name in size for size in GPU_SIZES):
        return ["every launch of a study runs on as many GPUs; fix it in engine.flags"]
    return []


def parameter(name: str, values: tuple[Value, ...] | Range) -> Parameter:
    """Return the knob that a study file writes as a list of values or a table of ends."""
    if not isinstance(values, Range):
        return Choice(name=name, values=values)
    ends = (values.low, values.high, values.step)
    whole = all(type(end) is int for end in ends if end is not None)
    knob = sglang.KNOBS.get(name)
    if knob is not None and knob.type is int and not whole:
        raise ValueError(f"knobs.{name}: low, high and step must be whole numbers, found {ends}")
    if (knob is not None and knob.type is float) or not whole:
        return FloatRange(
            name=name,
            low=float(values.low),
            high=float(values.high),
            step=None if values.step is None else float(values.step),
            log=values.log,
        )
    return IntRange(
        name=name,
        low=int(values.low),
        high=int(values.high),
        step=1 if values.step is None else int(values.step),
        log=values.log,
    )


def usual_stages(search: SearchTable, workload: WorkloadSpec) -> Iterator[Stage]:
    """Yield the stages of a study that names none: policy, the rest, policy again."""
    policies = search.knobs.get(POLICY, ())
    choices = policies if isinstance(policies, tuple) else ()
    rest = tuple(name for name in search.knobs if name != POLICY)
    left = search.launches - 1
    if len(choices) > 1:
        left -= len(choices)
        at = _where_policies_differ(search, workload)
        yield Stage(name="policy", knobs=(POLICY,), launches=len(choices), at=at)
        left -= len(choices) - 1 if rest else 0
    elif choices:
        rest = (POLICY, *rest)
    if rest and left > 0:
        yield Stage(name=CAPACITY, knobs=rest, launches=left)
        if len(choices) > 1:
            yield Stage(name="policy again", knobs=(POLICY,), launches=len(choices) - 1)


def _where_policies_differ(search: SearchTable, workload: WorkloadSpec) -> dict[str, Value]:
    """Cap the running requests so that a queue forms, yet no longer than policies look at."""
    name = "max_running_requests"
    if name not in search.knobs:
        return {}
    knob = parameter(name, search.knobs[name])
    waiting = workload.load.concurrency - workload.load.concurrency // 2
    cap = workload.load.concurrency - min(waiting, MOST_WAITING)
    match knob:
        case IntRange(low=low, top=top, step=step):
            steps = round((min(max(cap, low), top) - low) / step)
            return {name: low + steps * step}
        case Choice(values=values):
            return {name: min(values, key=lambda v: abs(int(v) - cap))}
        case FloatRange():
            return {}
