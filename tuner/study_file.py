"""The study file: what a user writes, checked before anything starts."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PositiveInt, ValidationError, model_validator

from objectives import METRICS, Limit, ThroughputUnderLimits
from objectives.statistics import VALUES_NEEDED
from runners.spec import EngineSpec, WorkloadSpec
from runners.table import Table
from search_spaces import SearchSpace, sglang
from tuner.bad_input import BadInputError, explain
from tuner.search_table import CAPACITY, SearchTable, Stage, parameter, usual_stages

FAILED_SHARE = 0.01  # more failed requests than this break every study's limits

PLENTY = 10**6  # launches; the stage that takes what is left then takes as many as it can
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
REQUEST_METRIC = r"(ttft|tpot|e2e)_p(50|95|99)_ms"  # a percentile over the measured requests

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
        for name, bound in self.limits.items():
            most = bound.at_most if isinstance(bound, Bound) else bound
            if most is not None and most < 0:
                raise ValueError(f"limits.{name} must not be below 0, found {most:g}")
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

    name: str
    folder: str | None = None  # default: studies/NAME

    @model_validator(mode="after")
    def _name_fits_a_folder(self) -> Self:
        if not re.fullmatch(NAME, self.name):
            raise ValueError(
                "name must be 1 to 80 letters, digits, dots, dashes and underscores, and begin "
                f"with a letter or digit, found {self.name!r}"
            )
        return self


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
        self._check_stages()
        for metric in (self.objective.maximize, *self.objective.limits):
            self._check_metric_exists(metric)
        return self

    def _check_stages(self) -> None:
        searched = {name for stage in self.search.stages for name in stage.knobs}
        left = [name for name in self.search.knobs if name not in searched]
        if self.search.stages and left:
            raise ValueError(
                "search.stages must move every knob of [search.knobs], found no stage that moves "
                + ", ".join(left)
            )
        if self.search.launches < (least := self._least_launches()):
            raise ValueError(
                "search.launches must cover the baseline and every stage, found "
                f"{self.search.launches}; this study takes at least {least}"
            )

    def _least_launches(self) -> int:
        """Return how many launches let every stage do something."""
        if self.search.stages:
            return 1 + sum(stage.launches for stage in self.search.stages)
        plenty = self.search.model_copy(update={"launches": PLENTY})
        stages = usual_stages(plenty, self.workload)
        return 1 + sum(1 if stage.name == CAPACITY else stage.launches for stage in stages)

    def _check_metric_exists(self, metric: str) -> None:
        """Refuse a metric that no launch of this workload could have."""
        if not (match := re.fullmatch(REQUEST_METRIC, metric)):
            return
        load, shapes = self.workload.load, self.workload.all_shapes()
        measured, needed = load.concurrency * load.rounds, VALUES_NEEDED[int(match[2]) / 100]
        if measured < needed:
            raise ValueError(
                f"{metric} takes at least {needed} measured requests (workload.load.concurrency x "
                f"rounds), found {load.concurrency} x {load.rounds}"
            )
        if match[1] == "tpot" and all(shape.output_tokens == 1 for shape in shapes):
            raise ValueError(
                f"{metric} takes answers of 2 tokens or more, found output_tokens = 1"
            )

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

    from tuner.yaml_loader import load

    try:
        return load(text)
    except yaml.YAMLError as error:
        raise BadInputError(f"{path}: not valid YAML: {_in_one_line(error)}") from error


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).replace(' in "<unicode string>",', " at").split())
