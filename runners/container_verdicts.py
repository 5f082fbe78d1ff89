"""What the keeper of a container says in the engine's log, and what it means for the launch."""

import re

from runners.cause import Cause
from runners.errors import CandidateRejectedError, MachineFaultError, RunnerError

SAYS = "container keeper: "  # before each line of the keeper's among the engine's
STOP, RETRY, NO_MEMORY = "stop: ", "retry: ", "out of memory: "
LINE = re.compile(rf"^{SAYS}({STOP}|{RETRY}|{NO_MEMORY})(.+)$", re.M)


def container_verdict(log: str) -> RunnerError | None:
    """Return why the container ended, by its keeper's last word; None when it gives no reason."""
    lines = LINE.findall(log)
    if not lines:
        return None
    kind, said = lines[-1]
    if kind == NO_MEMORY:
        return CandidateRejectedError(
            f"the kernel killed the engine at the memory limit of its container ({said}): raise "
            "engine.docker.memory",
            cause=Cause.HOST_MEMORY,
        )
    return MachineFaultError(said, lasting=kind == STOP, cause=Cause.CONTAINER)
