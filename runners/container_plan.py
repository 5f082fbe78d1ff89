"""Everything about the container of one launch, as plain data, and as a line for a shell. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from runners.docker_table import HOST_NETWORK, Mount
from runners.spec import EngineSpec

LOOPBACK = "127.0.0.1"
ALL_GPUS = "all"
PLURALS = ("devices",)  # names of docker-py whose switch names one of them
STUDY_LABEL, LAUNCH_LABEL, NUMBER_LABEL = (
    f"sgl-tuner.{what}" for what in ("study", "launch", "number")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """One container: what runs in it, and what of the machine it may use."""

    image: str
    command: tuple[str, ...]
    port: int
    host: str | None = None  # of the Docker Engine
    pull: str = "missing"
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    inherit: tuple[str, ...] = ()  # taken from the environment of whoever makes the container
    mounts: tuple[Mount, ...] = ()
    network: str = HOST_NETWORK
    shm_size: str = "32g"
    ipc: str | None = None
    memory: str | None = None
    gpus: tuple[str, ...] = ()  # indices or UUIDs, or "all"
    options: Mapping[str, Any] = field(default_factory=dict)
    grace_s: float = 40.0

    @property
    def published(self) -> bool:
        """True when the port has to be published: the container has addresses of its own."""
        return self.network != HOST_NETWORK

    def dumps(self) -> str:
        """Return text that `loads` takes back."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def loads(cls, text: str) -> Self:
        """Rebuild what `dumps` gave out."""
        data = json.loads(text)
        tuples = {name: tuple(data[name]) for name in ("command", "inherit", "gpus")}
        return cls(**{**data, **tuples, "mounts": tuple(Mount(*m) for m in data["mounts"])})

    def shell_words(self) -> list[str]:
        """Return the words of a `docker run` that starts the same engine in the foreground."""
        at = () if self.host is None else ("--host", self.host)
        run = ("docker", *at, "run", "--rm", "--init")
        return [*run, *self._switches(), self.image, *self.command]

    def _switches(self) -> Iterator[str]:
        if self.gpus:
            devices = ",".join(self.gpus)
            yield from ("--gpus", ALL_GPUS if self.gpus == (ALL_GPUS,) else f'"device={devices}"')
        yield from ("--network", self.network)
        if self.published:
            yield from ("--publish", f"{LOOPBACK}:{self.port}:{self.port}")
        yield from ("--shm-size", self.shm_size)
        for switch, value in (("--ipc", self.ipc), ("--memory", self.memory)):
            yield from () if value is None else (switch, value)
        for source, target, read_only in self.mounts:
            yield from ("--volume", f"{source}:{target}" + (":ro" if read_only else ""))
        for name, value in self.environment.items():
            yield from ("--env", f"{name}={value}")
        for name in self.inherit:
            yield from ("--env", name)
        for name, value in self.options.items():
            yield from _option(name, value)


def plan_for(  # noqa: PLR0913 - each is one thing that a launch decides
    engine: EngineSpec,
    command: Sequence[str],
    port: int,
    *,
    environment: Mapping[str, str],
    visible_gpus: str | None = None,
    name: str = "",
    labels: Mapping[str, str] | None = None,
) -> ContainerPlan:
    """Return the container that runs *command* for *engine*.

    *visible_gpus* are those this launch was given, as in CUDA_VISIBLE_DEVICES; None: all.

    Raises:
        ValueError: *engine* is not started by Docker.
    """
    table = engine.docker
    if table is None:
        raise ValueError("only an engine with launcher = 'docker' has a container")
    return ContainerPlan(
        image=table.image,
        command=tuple(command),
        port=port,
        host=table.host,
        pull=table.pull,
        name=name,
        labels=dict(labels or {}),
        environment=dict(environment),
        inherit=table.inherit,
        mounts=table.all_mounts(),
        network=table.network,
        shm_size=table.shm_size,
        ipc=table.ipc,
        memory=table.memory,
        gpus=_gpus(engine, visible_gpus),
        options=table.options,
        grace_s=engine.stop_grace_s,
    )


def _gpus(engine: EngineSpec, visible: str | None) -> tuple[str, ...]:
    if engine.docker is not None and engine.docker.gpus is not None:
        return engine.docker.gpus
    if engine.gpus == 0:
        return ()
    return (ALL_GPUS,) if visible is None else tuple(visible.split(","))


def _option(name: str, value: object) -> Iterator[str]:
    """Yield the switch that docker's command line has for an option of docker-py."""
    switch = "--" + name.replace("_", "-")
    if value is True:
        yield switch
    elif isinstance(value, list | tuple):
        for one in value:
            yield from (switch.removesuffix("s") if name in PLURALS else switch, str(one))
    elif value is not False:
        yield from (switch, str(value))
