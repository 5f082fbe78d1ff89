"""The study file: what a user writes, checked before anything starts."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PositiveInt, ValidationError, model_validator

from objectives import METRICS, Limit, ThroughputUnderLimits
from runners.spec import EngineSpec, Table, WorkloadSpec
from search_spaces import SearchSpace, sglang
from tuner.bad_input import BadInputError, explain
from tuner.search_table import SearchTable, Stage, parameter, usual_stages

FAILED_SHARE = 0.01  # more failed requests than this break every study's limits

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
        return self.search.stages or tuple(usual_stages(self.search, self.workload))


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


def nearest(name: str, known: tuple[str, ...]) -> str:
    """Say which of the *known* names is meant, or list them."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else "known are " + ", ".join(known)


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
