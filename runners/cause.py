"""What an engine's failure comes from, and which way a search should move because of it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

Direction = Literal["raise", "lower"]
Directions = Mapping[str, Direction]  # by knob: where settings that run are to be found


class Cause(StrEnum):
    """The classes of failures that a person, or a search, treats differently."""

    BAD_FLAG = "bad flag"
    BAD_VALUE = "bad value"
    WEIGHTS_MEMORY = "no memory for the weights"
    KV_MEMORY = "no memory for the KV cache"
    GRAPH_MEMORY = "no memory for CUDA graphs"
    LOAD_MEMORY = "out of memory under load"
    HOST_MEMORY = "killed for want of host memory"
    GRAPH_CAPTURE = "CUDA graphs could not be captured"
    NOT_READY = "not ready in time"
    CRASH = "crash"
    UNUSABLE_ANSWERS = "unusable answers"
    PORT = "port taken"
    LINKS = "GPU links"
    GPU_HELD = "GPU memory held by others"
    DRIVER = "driver or CUDA"
    MODEL_FILES = "model files"
    INSTALLATION = "engine not installed"
    CONTAINER = "container engine or image"
    DISK = "disk"
    KILLED = "killed from outside"
    CANCELLED = "broken off"
    UNKNOWN = "unknown"
