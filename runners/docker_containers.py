"""Containers of a Docker Engine or of Podman's socket like it. The only file that imports docker.

Every call that the engine does not answer as it should comes back as a `MachineFaultError` whose
text says what to do about it: a container engine's trouble says nothing about a setting.
"""

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.container_plan import ALL_GPUS, LOOPBACK, ContainerPlan
from runners.docker_trouble import fault, short, trouble
from runners.image_pull import Say, follow

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

CALL_LIMIT_S = 60.0
BRIEF_LABEL = "sgl-tuner.asked-by"  # machine and process that made it, to ask the image
LOG_LIMITS = {"max-size": "16m", "max-file": "2"}  # the engine keeps a copy, for `docker logs`


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image as it is on this machine."""

    reference: str
    id: str  # of its configuration: the same content has the same id
    digests: tuple[str, ...]  # NAME@sha256:..., as registries know it; none for one built here

    @property
    def pinned(self) -> str:
        """A reference that means this content for ever, on any machine if that can be."""
        return next(iter(self.digests), self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a container ended."""

    exit_code: int
    out_of_memory: bool  # the kernel killed something in it at its memory limit


@contextmanager
def connected(host: str | None) -> Iterator["DockerClient"]:
    """Give out a client of the Docker Engine at *host*.

    Raises:
        MachineFaultError: it does not answer.
    """
    import docker

    where = host or "DOCKER_HOST or the usual socket"
    try:
        client = (
            docker.from_env(timeout=CALL_LIMIT_S)
            if host is None
            else docker.DockerClient(base_url=host, timeout=CALL_LIMIT_S)
        )
        client.ping()
    except _failures(ValueError) as error:
        raise fault(
            f"a Docker Engine must answer at {where}, found: {short(error)}; is it running, and "
            "may this user use its socket?"
        ) from error
    try:
        yield client
    finally:
        client.close()


def image_here(client: "DockerClient", reference: str) -> Image | None:
    """Return the image of that name if this machine has it."""
    from docker.errors import ImageNotFound

    try:
        found = client.images.get(reference)
    except ImageNotFound:
        return None
    except _failures() as error:
        raise trouble(error, f"the image {reference!r} could not be looked up") from error
    digests = tuple(sorted(found.attrs.get("RepoDigests") or ()))
    return Image(reference=reference, id=str(found.id), digests=digests)


def ensured_image(client: "DockerClient", reference: str, pull: str, say: Say) -> Image:
    """Return the image of that name, pulled if *pull* ("missing", "always", "never") wants it.

    Raises:
        MachineFaultError: it is nowhere to be had.
    """
    image = None if pull == "always" else image_here(client, reference)
    if image is None and pull != "never":
        _pull(client, reference, say)
        image = image_here(client, reference)
    if image is None:
        raise fault(
            f"engine.docker.image must be on this machine, because engine.docker.pull = {pull!r}; "
            f"found no image {reference!r}"
        )
    return image


def created(client: "DockerClient", plan: ContainerPlan, environment: Mapping[str, str]) -> Any:
    """Return a new container that follows *plan*; it does not run yet.

    What the plan inherits is taken from *environment*.
    """
    from docker.errors import ImageNotFound

    inherited = {name: environment[name] for name in plan.inherit if name in environment}
    try:
        return client.containers.create(
            plan.image,
            list(plan.command),
            name=plan.name or None,
            labels=dict(plan.labels),
            environment={**inherited, **plan.environment},
            init=True,  # something in it must collect processes that ended
            **_resources(plan),
            **plan.options,
        )
    except ImageNotFound as error:
        raise fault(f"the image {plan.image!r} was removed meanwhile") from error
    except _failures(TypeError, ValueError, AttributeError) as error:
        raise trouble(error, "the container could not be made") from error


def started(container: "Container") -> int:
    """Start *container*; return its main process on this machine."""
    try:
        container.start()
        container.reload()
    except _failures() as error:
        raise trouble(error, "the container could not be started") from error
    return int(container.attrs["State"].get("Pid") or 0)


def output_of(container: "Container") -> Iterable[bytes]:
    """Return what *container*, not started yet, will print, until it ends."""
    try:
        lines: Iterable[bytes] = container.attach(stdout=True, stderr=True, stream=True)
    except _failures() as error:
        raise trouble(error, "the container's output could not be followed") from error
    return lines


def end_of(container: "Container") -> End:
    """Wait until *container* has ended; return how.

    Raises:
        MachineFaultError: the Docker Engine does not answer any more.
    """
    try:
        container.wait(timeout=None)
        container.reload()
    except _failures() as error:
        raise trouble(error, "the container was lost from sight", lasting=False) from error
    state = container.attrs["State"]
    return End(
        exit_code=int(state.get("ExitCode") or 0), out_of_memory=bool(state.get("OOMKilled"))
    )


def removed(container: "Container", grace_s: float) -> None:
    """Stop *container* politely, after the grace by force, and remove it."""
    from docker.errors import NotFound

    try:
        container.stop(timeout=max(0, round(grace_s)))
        container.remove(force=True, v=True)
    except NotFound:
        return  # somebody removed it already
    except _failures() as error:
        raise trouble(error, f"the container {container.name} could not be removed") from error


def brief(client: "DockerClient", plan: ContainerPlan, environment: Mapping[str, str]) -> Any:
    """Return a new container that its maker removes in a moment, or the next one once it is dead.

    Raises:
        MachineFaultError: it cannot be made.
    """
    machine, mine = socket.gethostname(), f"{socket.gethostname()} {os.getpid()}"
    for container in _labelled(client, BRIEF_LABEL):
        where, _, pid = str(container.labels.get(BRIEF_LABEL)).rpartition(" ")
        if where == machine and not Path("/proc", pid).exists():
            removed(container, 0)
    return created(client, replace(plan, labels={**plan.labels, BRIEF_LABEL: mine}), environment)


def run_once(
    client: "DockerClient", plan: ContainerPlan, environment: Mapping[str, str], limit_s: float
) -> tuple[int, str]:
    """Run *plan*'s command past the image's entry point; return exit code and output.

    Raises:
        MachineFaultError: it cannot be run, or takes longer than *limit_s*.
    """
    first, *rest = plan.command
    options = {**plan.options, "entrypoint": [first]}
    asking = replace(plan, command=tuple(rest), options=options)
    container = brief(client, asking, environment)
    try:
        started(container)
        code = int(container.wait(timeout=limit_s)["StatusCode"])
        return code, container.logs().decode(errors="replace")
    except _failures() as error:
        raise trouble(error, f"{first} in {plan.image} did not end well") from error
    finally:
        removed(container, 0)


def has_network(client: "DockerClient", name: str) -> bool:
    """Return whether the engine knows a network called *name*."""
    from docker.errors import NotFound

    try:
        client.networks.get(name)
    except NotFound:
        return False
    except _failures() as error:
        raise trouble(error, f"the network {name!r} could not be looked up") from error
    return True


def unknown_options(names: Iterable[str]) -> list[str]:
    """Return those of *names* that docker-py does not take when it makes a container."""
    from docker.models.containers import RUN_CREATE_KWARGS, RUN_HOST_CONFIG_KWARGS

    return sorted(set(names) - {*RUN_CREATE_KWARGS, *RUN_HOST_CONFIG_KWARGS})


def swept(host: str | None, label: str, value: str) -> list[str]:
    """Remove the containers with that label, running or not; return their names.

    Raises:
        MachineFaultError: the engine does not answer, or cannot remove one.
    """
    with connected(host) as client:
        found = _labelled(client, f"{label}={value}")
        for container in found:
            removed(container, 0)
        return [str(container.name) for container in found]


def _failures(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return what docker-py raises when the engine does not answer as it should, and *more*.

    Beside its own errors those of requests, which are OSErrors, and of a stream cut off.
    """
    from docker.errors import DockerException
    from urllib3.exceptions import HTTPError

    return (DockerException, OSError, HTTPError, *more)


def _labelled(client: "DockerClient", label: str) -> list[Any]:
    wanted = {"label": label}
    try:
        return list(client.containers.list(all=True, filters=wanted, ignore_removed=True))
    except _failures() as error:
        raise trouble(error, "the containers could not be listed") from error


def _resources(plan: ContainerPlan) -> dict[str, Any]:
    from docker.types import DeviceRequest, LogConfig, Mount

    port = {f"{plan.port}/tcp": (LOOPBACK, plan.port)} if plan.published else {}
    return {
        "network": None if not plan.published else plan.network,
        "network_mode": None if plan.published else plan.network,
        "ports": port,
        "mounts": [Mount(m.target, m.source, "bind", m.read_only) for m in plan.mounts],
        "shm_size": plan.shm_size,
        "ipc_mode": plan.ipc,
        "mem_limit": plan.memory,
        "memswap_limit": plan.memory,  # a limit that swapping gets around is none
        "device_requests": [_devices(plan.gpus, DeviceRequest)] if plan.gpus else None,
        "log_config": LogConfig(type="json-file", config=LOG_LIMITS),
    }


def _devices(gpus: tuple[str, ...], request: Callable[..., Any]) -> Any:
    if gpus == (ALL_GPUS,):
        return request(count=-1, capabilities=[["gpu"]])
    return request(device_ids=list(gpus), capabilities=[["gpu"]])


def _pull(client: "DockerClient", reference: str, say: Say) -> None:
    from docker.utils import parse_repository_tag

    repository, tag = parse_repository_tag(reference)
    say(f"pulling image {reference}")
    try:
        events = client.api.pull(repository, tag=tag or "latest", stream=True, decode=True)
        follow(events, say)
    except _failures() as error:
        raise trouble(
            error, f"engine.docker.image {reference!r} is not here and could not be pulled"
        ) from error
