"""Whether an engine's container could be made on this machine, and what image it is made of."""

from collections.abc import Iterator
from pathlib import Path

from runners.docker_containers import connected, ensured_image, image_here, unknown_options
from runners.docker_table import DockerTable
from runners.image_pull import Say


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
