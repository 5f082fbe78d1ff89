"""What a user may say about the engine and the traffic: the two tables every trial needs.

These are the `[engine]` and `[workload]` tables of a study file, checked field by field.
"""

import math
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from runners.docker_table import VARIABLE, DockerTable
from runners.redaction import is_secret
from runners.table import Table
from search_spaces.flag_values import fixed_value
from search_spaces.sglang import wrong_names

DATA_PARALLEL = ("--dp-size", "--data-parallel-size")
# the flags, each with its other name, whose product is the GPUs of a launch
GPU_SIZES = (
    ("--tp-size", "--tensor-parallel-size"),
    ("--pp-size", "--pipeline-parallel-size"),
    DATA_PARALLEL,
)

NonNegativeInt = Annotated[int, Field(ge=0)]


class EngineSpec(Table):
    """The engine to tune and how to start it."""

    kind: Literal["sglang", "emulated"]
    model: str = Field(min_length=1)
    launcher: Literal["process", "docker"] = "process"
    command: tuple[str, ...] = ()  # words before the flags; empty: the usual one for this kind
    flags: tuple[str, ...] = ()  # fixed for every trial
    env: dict[str, str] = Field(default_factory=dict)
    port: Annotated[int, Field(ge=1, le=65535)] | None = None  # default: any free one
    startup_timeout_s: PositiveFloat = 1800.0  # whatever happens
    startup_stall_s: PositiveFloat = 300.0  # while nothing moves
    stop_grace_s: PositiveFloat = 40.0
    docker: DockerTable | None = None  # with launcher = "docker"
    # the emulated engine only
    hardware: str | None = None
    speed: PositiveFloat = 1.0  # emulated seconds per second of wall clock

    @model_validator(mode="after")
    def _check(self) -> Self:
        if problems := wrong_names(self.flags):
            raise ValueError("; ".join(problems))
        for name in (name for name in self.env if not VARIABLE.fullmatch(name)):
            raise ValueError(f"env must hold names of variables, found {name!r}")
        for name in filter(is_secret, self.env):
            raise ValueError(
                f"env.{name}: a study file must hold no secrets, found one by its name; set it in "
                "your shell, from which the engine inherits it (in a container: what "
                "engine.docker.inherit names)"
            )
        if (self.launcher == "docker") != (self.docker is not None):
            raise ValueError(
                'launcher = "docker" and the table [engine.docker] go together, found only '
                + ("the launcher" if self.docker is None else "the table")
            )
        if self.kind == "emulated" and self.hardware is None:
            raise ValueError(
                "hardware must name what to emulate, found nothing; see 'tuner emulate --list'"
            )
        if self.kind == "sglang" and (self.hardware is not None or self.speed != 1.0):
            raise ValueError(
                'hardware and speed belong to kind = "emulated", found them with "sglang"'
            )
        return self

    @property
    def emulated(self) -> bool:
        """True when no figure of this engine is a measurement of real hardware."""
        return self.kind == "emulated"

    @property
    def model_folder(self) -> Path | None:
        """Where the model would lie on this machine, None when no mount leads there."""
        if self.docker is not None:
            return self.docker.on_this_machine(self.model)
        return Path(self.model).expanduser()

    @property
    def gpus(self) -> int:
        """GPUs one launch needs: tp x pp x dp, none for an emulated engine or a CPU one."""
        if self.emulated or fixed_value(self.flags, "--device") == "cpu":
            return 0
        sizes = list(GPU_SIZES)
        if "--enable-dp-attention" in self.flags:  # dp then shares out the GPUs of tp
            sizes.remove(DATA_PARALLEL)
        values = (fixed_value(self.flags, flag) for size in sizes for flag in size)
        return math.prod(int(value) for value in values if value)


class Shape(Table):
    """One kind of request: its lengths in tokens, and the prefixes it shares with others."""

    share: PositiveFloat = 1.0
    input_tokens: PositiveInt
    output_tokens: PositiveInt
    prefix_groups: NonNegativeInt = 0  # how many different prefixes are in use; 0: none
    prefix_tokens: NonNegativeInt = 0  # length of the shared part, inside input_tokens

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.prefix_groups == 0) != (self.prefix_tokens == 0):
            raise ValueError(
                "prefix_groups and prefix_tokens go together, found "
                f"prefix_groups = {self.prefix_groups}, prefix_tokens = {self.prefix_tokens}"
            )
        if self.prefix_tokens >= self.input_tokens:
            raise ValueError(
                "prefix_tokens must be below input_tokens, found "
                f"{self.prefix_tokens} and {self.input_tokens}"
            )
        return self


class LoadSpec(Table):
    """How the requests are sent: *concurrency* slots, each with a fixed number of rounds.

    Warm-up rounds are thrown away; they run at the same concurrency with other prompts and hand
    over to the measured rounds without a pause.
    """

    kind: Literal["closed"] = "closed"
    concurrency: PositiveInt
    rounds: PositiveInt
    warmup_rounds: PositiveInt = 1
    first_token_timeout_s: PositiveFloat = 120.0
    stall_timeout_s: PositiveFloat = 60.0
    total_timeout_s: PositiveFloat = 600.0


class WorkloadSpec(Table):
    """The traffic: the shapes of the requests, the seed that fixes them, and the load."""

    kind: Literal["fixed", "mixed"]
    seed: NonNegativeInt = 0
    # token ids are below it, and there must be two to draw from; default: the model's, or 32000
    vocabulary: Annotated[int, Field(ge=3)] | None = None
    input_tokens: PositiveInt | None = None
    output_tokens: PositiveInt | None = None
    prefix_groups: NonNegativeInt = 0
    prefix_tokens: NonNegativeInt = 0
    shapes: tuple[Shape, ...] = ()
    load: LoadSpec

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "fixed" and (self.input_tokens is None or self.output_tokens is None):
            raise ValueError('kind = "fixed" needs input_tokens and output_tokens')
        if self.kind == "fixed" and self.shapes:
            raise ValueError('kind = "fixed" takes no shapes; use kind = "mixed"')
        if self.kind == "mixed" and not self.shapes:
            raise ValueError('kind = "mixed" needs at least one [[workload.shapes]], found none')
        if self.kind == "mixed" and (self.input_tokens or self.output_tokens):
            raise ValueError('kind = "mixed" takes its lengths from [[workload.shapes]]')
        self.all_shapes()  # a fixed shape is checked as one of many would be
        return self

    def all_shapes(self) -> tuple[Shape, ...]:
        """Return the shapes; a fixed workload has one."""
        if self.kind == "mixed" or self.input_tokens is None or self.output_tokens is None:
            return self.shapes
        return (
            Shape(
                input_tokens=self.input_tokens,
                output_tokens=self.output_tokens,
                prefix_groups=self.prefix_groups,
                prefix_tokens=self.prefix_tokens,
            ),
        )
