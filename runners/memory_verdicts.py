"""What an engine ran out of memory for, and which way a search should move because of it."""

import re
from dataclasses import dataclass

from runners.cause import Cause, Directions
from runners.ending import Ending, short
from runners.errors import CandidateRejectedError, MachineFaultError, RunnerError

HELD_SHARE = 0.1  # of a GPU's memory: what others may hold before they are to blame
DEVICE = re.compile(r"total capacity of ([\d.]+) GiB of which ([\d.]+) ([GM])iB is free")
OWN = re.compile(r"this process has ([\d.]+) ([GM])iB memory in use")


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of an engine's life, and what to change when memory runs out in it."""

    cause: Cause
    where: str
    directions: Directions


WEIGHTS = Phase(Cause.WEIGHTS_MEMORY, "while it loaded the weights", {})
POOL = Phase(Cause.KV_MEMORY, "while it set up its KV cache", {"mem_fraction_static": "lower"})
GRAPHS = Phase(
    Cause.GRAPH_MEMORY,
    "while it captured its CUDA graphs",
    {"mem_fraction_static": "lower", "max_running_requests": "lower"},
)
LOAD: Directions = {
    "mem_fraction_static": "lower",
    "token_budget": "lower",
    "max_running_requests": "lower",
}
WARM_UP = Phase(Cause.LOAD_MEMORY, "while it warmed up", LOAD)
UNDER_LOAD = Phase(Cause.LOAD_MEMORY, "under load", LOAD)
MARKS = (  # what the log, or a traceback's own lines, say of the phase
    (re.compile(r", in load_(?:model|weights)\b"), WEIGHTS),
    (re.compile(r"Load weight end|Model loading took"), POOL),
    (
        re.compile(r", in (?:init|alloc|_build|initialize|_create)_\w*(?:pool|buffers|kv_cache)"),
        POOL,
    ),
    (re.compile(r"Capture cuda graph begin|Capturing CUDA graph|, in capture"), GRAPHS),
    (re.compile(r"Capture cuda graph end|Graph capturing finished|, in event_loop_"), WARM_UP),
)
GRAPHS_FAILED = re.compile(r"Capture cuda graph failed|Fail when using backend: .* for prefill")


def advice(directions: Directions) -> str:
    """Say in words which way to move: "raise A, or lower B, C or D"."""
    ways = []
    for way in ("raise", "lower"):
        if names := [name for name, direction in directions.items() if direction == way]:
            ways.append(f"{way} " + " or ".join(filter(None, (", ".join(names[:-1]), names[-1]))))
    return ", or ".join(ways)


def out_of_memory(match: re.Match[str], ending: Ending) -> RunnerError:
    """Return the verdict for an allocation that failed."""
    if (others := _held_by_others(ending.log[match.start() :])) is not None:
        return MachineFaultError(
            f"the engine ran out of GPU memory because other processes hold {others:.1f} GiB of "
            "it: end them, or give the engine another GPU",
            cause=Cause.GPU_HELD,
        )
    phase = _phase(ending, match.start())
    hint = advice(phase.directions) or "the model needs more or larger GPUs"
    return CandidateRejectedError(
        f"the engine ran out of memory {phase.where} ({match[0]}): {hint}",
        cause=phase.cause,
        directions=phase.directions,
    )


def no_room_for_cache(match: re.Match[str], _: Ending) -> RunnerError:
    """Return the verdict for weights that leave the KV cache no room."""
    least = re.search(r"above (\d*\.?\d+)", match[0])
    to = f" above {least[1]}" if least else ""
    return CandidateRejectedError(
        f"the weights leave no memory for the KV cache: raise mem_fraction_static{to}",
        cause=Cause.KV_MEMORY,
        directions={"mem_fraction_static": "raise"},
    )


def asked_for_more_than_free(match: re.Match[str], _: Ending) -> RunnerError:
    """Return the verdict for a share of the GPU that is not free: too large, or held by others."""
    free_gib, total_gib = float(match[1]), float(match[2])
    if free_gib < (1 - HELD_SHARE) * total_gib:
        return MachineFaultError(
            f"only {free_gib:g} of the {total_gib:g} GiB of memory are free, others hold the "
            "rest: end them, or give the engine another GPU",
            cause=Cause.GPU_HELD,
        )
    return CandidateRejectedError(
        f"the engine asked for more memory than the {free_gib:g} of {total_gib:g} GiB that are "
        "free: lower mem_fraction_static",
        cause=Cause.KV_MEMORY,
        directions={"mem_fraction_static": "lower"},
    )


def host_memory_full(said: str = "the kernel killed the engine") -> RunnerError:
    """Return the verdict for a machine whose memory, not the GPU's, was full."""
    return CandidateRejectedError(
        f"{short(said)} because the machine's memory was full: lower mem_fraction_static, or give "
        "the KV pool a size with --max-total-tokens",
        cause=Cause.HOST_MEMORY,
        directions={"mem_fraction_static": "lower", "--max-total-tokens": "lower"},
    )


def _phase(ending: Ending, until: int) -> Phase:
    if ending.ready:
        return UNDER_LOAD
    if GRAPHS_FAILED.search(ending.log):
        return GRAPHS
    begun = [
        (found.start(), phase)
        for mark, phase in MARKS
        for found in mark.finditer(ending.log, 0, until)
    ]
    return max(begun, key=lambda one: one[0])[1] if begun else WEIGHTS


def _held_by_others(said: str) -> float | None:
    device, own = DEVICE.search(said), OWN.search(said)
    if device is None or own is None:
        return None
    total = float(device[1])
    others = total - _gib(device[2], device[3]) - _gib(own[1], own[2])
    return others if others > HELD_SHARE * total else None


def _gib(number: str, unit: str) -> float:
    return float(number) / (1024 if unit == "M" else 1)
