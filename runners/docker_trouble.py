"""What a container engine's errors mean, in words that say what to do about them."""

from runners.cause import Cause
from runners.errors import MachineFaultError

LONGEST = 300  # characters of the container engine's own words
NO_GPU_RUNTIME = ("could not select device driver", "nvidia-container", "unresolvable CDI devices")
PORT_TAKEN = ("port is already allocated", "address already in use")


def trouble(error: Exception, what: str, *, lasting: bool = True) -> MachineFaultError:
    """Return the fault behind *error*; *what* could not be done because of it."""
    said = short(error)
    if any(words in said for words in NO_GPU_RUNTIME):
        return fault(
            f"the Docker Engine must be able to hand out GPUs, found: {said}; install the NVIDIA "
            "Container Toolkit on this machine, or take the GPUs out of the study"
        )
    if any(words in said for words in PORT_TAKEN):
        return MachineFaultError(f"{what}: {said}", cause=Cause.PORT)
    return fault(f"{what}: {said}", lasting=lasting)


def fault(sentence: str, *, lasting: bool = True) -> MachineFaultError:
    """Return the fault that *sentence* tells."""
    return MachineFaultError(sentence, lasting=lasting, cause=Cause.CONTAINER)


def short(error: Exception) -> str:
    """Return what *error* says, in one line."""
    explanation = getattr(error, "explanation", None) or str(error)
    return " ".join(str(explanation).split())[:LONGEST]
