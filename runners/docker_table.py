"""What a user may say about the container an engine runs in: the `[engine.docker]` table."""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from runners.table import Table

HOST_NETWORK = "host"
REFERENCE = re.compile(
    r"([A-Za-z0-9.-]+(:\d+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
SCHEMES = ("unix://", "tcp://", "ssh://", "http://", "https://", "npipe://")
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
SIZE = re.compile(r"\d+[bkmg]?", re.IGNORECASE)
# What the tuner says itself when it makes a container.
OUR_OPTIONS = (
    *("auto_remove", "command", "detach", "device_requests", "environment", "image", "init"),
    *("ipc_mode", "labels", "log_config", "mem_limit", "memswap_limit", "mounts", "name"),
    *("network", "network_mode", "ports", "publish_all_ports", "remove", "restart_policy"),
    *("shm_size", "stdin_open", "tty", "volumes"),
)


class Mount(NamedTuple):
    """A directory or file of this machine inside the container."""

    source: str
    target: str
    read_only: bool


class DockerTable(Table):
    """The image, and what of this machine its container may use."""

    image: str = Field(min_length=1)  # NAME:TAG or NAME@sha256:DIGEST
    pull: Literal["missing", "always", "never"] = "missing"
    host: str | None = None  # the Docker Engine; default: DOCKER_HOST, or the usual socket
    mounts: tuple[str, ...] = ()  # SOURCE:TARGET or SOURCE:TARGET:ro
    network: str = Field(default=HOST_NETWORK, min_length=1)
    shm_size: str = "32g"  # of /dev/shm, in which workers talk to each other
    ipc: str | None = None
    memory: str | None = None  # limit; beyond it the kernel kills
    gpus: tuple[str, ...] | None = None  # indices or UUIDs; default: as many as the flags need
    inherit: tuple[str, ...] = ("HF_TOKEN",)  # variables of your shell that it gets too
    options: dict[str, Any] = Field(default_factory=dict)  # more, by their names in docker-py

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_names(self)
        for name in ("shm_size", "memory"):
            size = getattr(self, name)
            if size is not None and not SIZE.fullmatch(size):
                raise ValueError(f"{name} must be a size such as '32g' or '512m', found {size!r}")
        if self.network == "none" or self.network.startswith("container:"):
            raise ValueError(
                "network must be 'host', 'bridge' or the name of a network in which the tuner "
                f"can reach the engine, found {self.network!r}"
            )
        for name in sorted(self.options.keys() & set(OUR_OPTIONS)):
            raise ValueError(f"options.{name}: the tuner sets it itself, from the keys beside it")
        return self

    @property
    def on_host_network(self) -> bool:
        """True when the engine listens on the machine's own addresses."""
        return self.network == HOST_NETWORK

    def all_mounts(self) -> tuple[Mount, ...]:
        """Return the mounts, their sources absolute."""
        return tuple(map(_mount, self.mounts))

    def with_absolute_mounts(self) -> Self:
        """Return the same for another working directory."""
        modes = {True: ":ro", False: ""}
        mounts = (f"{m.source}:{m.target}{modes[m.read_only]}" for m in self.all_mounts())
        return self.model_copy(update={"mounts": tuple(mounts)})

    def on_this_machine(self, inside: str) -> Path | None:
        """Return where the file *inside* the container lies here, None when no mount has it."""
        found = list(_sources(self.all_mounts(), PurePosixPath(inside)))
        return found[-1] if found else None


def _check_names(table: DockerTable) -> None:
    if not REFERENCE.fullmatch(table.image):
        raise ValueError(
            "image must be written NAME:TAG or NAME@sha256: and 64 hexadecimal digits, as "
            f"'docker pull' takes it, found {table.image!r}"
        )
    if table.host is not None and not table.host.startswith(SCHEMES):
        raise ValueError(
            "host must be an address such as 'unix:///var/run/docker.sock' or "
            f"'tcp://127.0.0.1:2375', found {table.host!r}"
        )
    targets = [str(PurePosixPath(_mount(text).target)) for text in table.mounts]
    for target in targets:
        if targets.count(target) > 1:
            raise ValueError(f"two mounts must not go to one place, found two at {target}")
    for name in table.inherit:
        if not VARIABLE.fullmatch(name):
            raise ValueError(f"inherit must hold names of variables, found {name!r}")


def _sources(mounts: tuple[Mount, ...], inside: PurePosixPath) -> Iterator[Path]:
    for mount in sorted(mounts, key=lambda m: len(m.target)):
        if inside.is_relative_to(mount.target):
            yield Path(mount.source, inside.relative_to(mount.target))


def _mount(text: str) -> Mount:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target.startswith("/") or mode not in {"", "ro", "rw"}:
        raise ValueError(
            "a mount must be written SOURCE:TARGET or SOURCE:TARGET:ro, with TARGET an absolute "
            f"path in the container, found {text!r}"
        )
    return Mount(str(Path(source).expanduser().absolute()), target, mode == "ro")
