"""Whether an engine's container could be made on this machine, and what image it is made of."""

import os
from collections.abc import Iterator
from pathlib import Path

from runners.container_plan import plan_for
from runners.docker_containers import (
    brief,
    connected,
    ensured_image,
    has_network,
    image_here,
    removed,
    unknown_options,
)
from runners.docker_table import HOST_NETWORK, DockerTable
from runners.errors import MachineFaultError
from runners.image_pull import Say
from runners.sglang import base_command
from runners.spec import EngineSpec

MODES = (HOST_NETWORK, "bridge", "default", "pasta", "slirp4netns")  # Docker's and Podman's
PORT = 30000  # a stand-in: nothing listens on it


def container_problems(table: DockerTable) -> Iterator[str]:
    """Say in one sentence each what would make every container fail.

    Raises:
        MachineFaultError: the Docker Engine does not answer.
    """
    for mount in table.all_mounts():
        if not Path(mount.source).exists():
            yield f"engine.docker.mounts must name what is there, found nothing at {mount.source}"
    for name in unknown_options(table.options):
        yield (
            f"engine.docker.options must be options of docker-py's containers.create, found {name}"
        )
    with connected(table.host) as client:
        if table.pull == "never" and image_here(client, table.image) is None:
            yield (
                f'engine.docker.image must be on this machine, because pull = "never"; found no '
                f"image {table.image!r}"
            )
        if table.network not in MODES and not has_network(client, table.network):
            yield (
                "engine.docker.network must be one that 'docker network ls' shows, found "
                f"{table.network!r}"
            )


def creation_problem(engine: EngineSpec) -> str | None:
    """Make *engine*'s container if its image is here, never start it; return why it cannot be."""
    table = engine.docker
    if table is None:
        return None
    plan = plan_for(engine, base_command(engine), PORT, environment=engine.env)
    with connected(table.host) as client:
        if image_here(client, table.image) is None:
            return None
        try:
            removed(brief(client, plan, os.environ), 0)
        except MachineFaultError as error:
            return f"engine.docker: {error}"
    return None


def container_notes(table: DockerTable) -> Iterator[str]:
    """Say what is worth knowing about the image."""
    with connected(table.host) as client:
        if table.pull != "never" and image_here(client, table.image) is None:
            yield f"the image {table.image!r} will be pulled before the first launch"


def pinned(table: DockerTable, say: Say) -> DockerTable:
    """Return *table* with its image by digest, pulled if need be: a tag may move meanwhile.

    Raises:
        MachineFaultError: the image is nowhere to be had.
    """
    with connected(table.host) as client:
        image = ensured_image(client, table.image, table.pull, say)
    return table.model_copy(update={"image": image.pinned, "pull": "missing"})
