"""The study file: what a user writes, checked before anything starts."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from objectives import METRICS, Limit, ThroughputUnderLimits
from runners.spec import EngineSpec, NonNegativeInt, Table, WorkloadSpec
from search_spaces import (
    Candidate,
    Choice,
    FloatRange,
    IntRange,
    Parameter,
    SearchSpace,
    Value,
    sglang,
)
from tuner.bad_input import BadInputError, explain

FAILED_SHARE = 0.01  # more failed requests than this break every study's limits
POLICY = "schedule_policy"
MOST_WAITING = 128  # beyond it SGLang's lpm and hrrn act as fcfs, and comparing them is void

Metric = Annotated[str, Field(min_length=1)]


class Bound(Table):
    """One limit on a metric."""

    at_most: float | None = None
    at_least: float | None = None

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("a limit needs either at_most or at_least")
        return self


class ObjectiveTable(Table):
    """What to maximise, and the limits it must keep."""

    maximize: Metric = "output_tokens_per_s"
    limits: dict[str, float | Bound] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _metrics_exist(self) -> Self:
        for name in (self.maximize, *self.limits):
            if name not in METRICS:
                raise ValueError(f"there is no metric {name!r}; {nearest(name, METRICS)}")
        return self

    def objective(self) -> ThroughputUnderLimits:
        """Return the objective; failed requests are always limited."""
        bounds: dict[str, float | Bound] = {"failed_share": FAILED_SHARE, **self.limits}
        limits = tuple(_limit(metric, bound) for metric, bound in bounds.items())
        return ThroughputUnderLimits(maximize=self.maximize, limits=limits)


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
            if found := sglang.name_problems(name) or problems:
                raise ValueError(f"knobs.{name}: {'; '.join(found)}")
            parameter(name, values)  # a range that is empty is refused where it is written
        for stage in self.stages:
            for name in (*stage.knobs, *stage.at):
                if name not in self.knobs:
                    raise ValueError(
                        f"stage {stage.name!r} names the knob {name!r}, which [search.knobs] lacks"
                    )
        return self


class TrackingTable(Table):
    """Where MLflow keeps the runs."""

    uri: str = Field(default="sqlite:///mlruns/mlflow.db", min_length=1)
    experiment: str | None = None  # default: the study's name
    enabled: bool = True


class ClusterTable(Table):
    """The Ray cluster that runs the trials."""

    address: str = "local"
    parallel: PositiveInt = 1  # trials side by side; each on GPUs of its own


class StudyTable(Table):
    """The study's name and folder."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
    folder: str | None = None  # default: studies/NAME


class StudyFile(Table):
    """A whole study, as written by a user."""

    study: StudyTable
    engine: EngineSpec
    workload: WorkloadSpec
    objective: ObjectiveTable = ObjectiveTable()
    search: SearchTable
    tracking: TrackingTable = TrackingTable()
    cluster: ClusterTable = ClusterTable()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.search.knobs:
            for flag in sglang.flag_names(name):
                if any(word.partition("=")[0] == flag for word in self.engine.flags):
                    raise ValueError(
                        f"search.knobs.{name} sets {flag}, and engine.flags fixes it: keep one"
                    )
        stages = self.stages()
        spent = 1 + sum(stage.launches for stage in stages)
        searched = {name for stage in stages for name in stage.knobs}
        if spent > self.search.launches or len(searched) < len(self.search.knobs):
            raise ValueError(
                "search.launches must cover the baseline and every stage, found "
                f"{self.search.launches}; baseline and stages ({_named(stages)}) take {spent}"
                + "".join(f", and no stage moves {name}" for name in self._left_out(searched))
            )
        return self

    def _left_out(self, searched: set[str]) -> list[str]:
        return [name for name in self.search.knobs if name not in searched]

    def space(self) -> SearchSpace:
        """Return every setting the search may launch."""
        parameters = [parameter(name, values) for name, values in self.search.knobs.items()]
        return sglang.space(parameters, self.engine.flags)

    def folder(self) -> Path:
        """Return the folder of the study, relative to the working directory."""
        return Path(self.study.folder or f"studies/{self.study.name}")

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages as written, or the usual ones: policy, the rest, policy again."""
        return self.search.stages or tuple(_usual_stages(self.search, self.workload))


def _named(stages: tuple[Stage, ...]) -> str:
    return ", ".join(f"{stage.name}: {stage.launches}" for stage in stages)


def load_study_file(path: Path) -> StudyFile:
    """Read and check a study file: TOML, or YAML by its ending.

    Raises:
        BadInputError: one sentence for each thing that is wrong, with its place.
    """
    data = _parse(path)
    try:
        return StudyFile.model_validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        raise BadInputError("\n".join(explain(path, error, StudyFile))) from error


def parameter(name: str, values: tuple[Value, ...] | Range) -> Parameter:
    """Return the knob that a study file writes as a list of values or a table of ends."""
    if not isinstance(values, Range):
        return Choice(name=name, values=values)
    whole = type(values.low) is int and type(values.high) is int
    knob = sglang.KNOBS.get(name)
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
        step=int(values.step or 1),
        log=values.log,
    )


def nearest(name: str, known: tuple[str, ...]) -> str:
    """Say which of the *known* names is meant, or list them."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else "known are " + ", ".join(known)


def _usual_stages(search: SearchTable, workload: WorkloadSpec) -> Iterator[Stage]:
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
        yield Stage(name="capacity", knobs=rest, launches=left)
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
        case IntRange(low=low, high=high, step=step):
            steps = round((min(max(cap, low), high) - low) / step)
            return {name: low + steps * step}
        case Choice(values=values):
            return {name: min(values, key=lambda v: abs(int(v) - cap))}
        case FloatRange():
            return {}


def _limit(metric: str, bound: float | Bound) -> Limit:
    if isinstance(bound, Bound):
        return Limit(metric=metric, at_most=bound.at_most, at_least=bound.at_least)
    return Limit(metric=metric, at_most=bound)


def _parse(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path}: must be UTF-8 text, found {error}") from error
    data = _parse_yaml(path, text) if path.suffix in {".yaml", ".yml"} else _parse_toml(path, text)
    if not isinstance(data, dict):
        raise BadInputError(f"{path}: must hold tables such as [engine], found {data!r}")
    return data


def _parse_toml(path: Path, text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInputError(f"{path}: not valid TOML: {error}") from error


def _parse_yaml(path: Path, text: str) -> object:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
