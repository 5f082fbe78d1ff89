"""Where the memory of a GPU goes: weights, KV pool, CUDA graphs, and what is left to compute in.

SGLang gives `mem_fraction_static` of the memory to weights and KV pool together. Too little, and
no token fits beside the weights; too much, and the activations of a step find no room: when the
CUDA graphs are captured, or later under load. The sizes of activations and graphs are assumptions
of this model.
"""

import math
from dataclasses import dataclass

from runners.emulated.death import EngineDeathError
from runners.emulated.hardware import GIB, Hardware
from runners.emulated.models import BYTES_PER_PARAMETER, Model

MIB = 1024**2
CONTEXT_BYTES = 512 * MIB  # CUDA context and libraries, taken before the engine looks
WORKSPACE_BYTES = 512 * MIB  # of the attention kernels
GRAPH_BYTES = 256 * MIB  # of the CUDA graphs, however few
GRAPH_REQUEST_BYTES = 2 * MIB  # and for each request of the largest one: SGLang's own estimate
FRAGMENTATION = 1.5  # of activations
LOGIT_BYTES = 8  # per entry: float32 and a copy to sample from


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """How one GPU's memory is divided."""

    kv_pool_tokens: int
    kv_pool_bytes: int
    weight_bytes: int
    graph_bytes: int
    free_bytes: int  # left for activations
    token_bytes: float  # activations of one token in a step
    sampled_bytes: float  # and of one sampled request
    profiled_tokens: int  # what the fraction would have allowed

    def activation_bytes(self, tokens: int, sampled: int) -> float:
        """Return what a step over *tokens* that samples for *sampled* requests needs."""
        return self.token_bytes * tokens + self.sampled_bytes * sampled

    def check_step(self, tokens: int, sampled: int) -> None:
        """Die as PyTorch does when a step needs more than is free."""
        needed = self.token_bytes * tokens + self.sampled_bytes * sampled
        if needed > self.free_bytes:
            raise EngineDeathError(_out_of_memory(needed, self.free_bytes))


def auto_chunked_prefill_size(hardware: Hardware) -> int:
    """Return the chunk SGLang chooses for a GPU of this memory."""
    for below_gib, chunk in ((20, 2048), (60, 4096), (160, 8192)):
        if hardware.memory_gib < below_gib:
            return chunk
    return 16384


def auto_graph_requests(hardware: Hardware, tp: int) -> int:
    """Return the largest decode batch SGLang captures a CUDA graph for."""
    wide = tp >= 4  # noqa: PLR2004 - SGLang's own border
    if hardware.memory_gib < 20:  # noqa: PLR2004
        return 8
    if hardware.memory_gib < 60:  # noqa: PLR2004
        small = 48 if hardware.memory_gib < 35 else 32  # noqa: PLR2004
        return 160 if wide else small
    return 512 if wide or hardware.memory_gib >= 160 else 256  # noqa: PLR2004


def auto_mem_fraction(
    hardware: Hardware, *, chunk: int, max_prefill_tokens: int, tp: int, graph_requests: int
) -> float:
    """Return the fraction SGLang chooses: all but a reserve that grows with the chunk."""
    memory_mb = hardware.memory_gib * 1024
    largest = chunk if chunk > 0 else max_prefill_tokens
    reserve_mb = 512 + 1.5 * max(largest, 2048) + tp / 8 * 1024 + 2 * graph_requests
    if hardware.memory_gib > 60:  # noqa: PLR2004
        reserve_mb = max(reserve_mb, 10 * 1024)
    return round((memory_mb - reserve_mb) / memory_mb, 3)


def divide(  # noqa: PLR0913 - each is one thing the user or the table says
    model: Model,
    hardware: Hardware,
    *,
    fraction: float,
    tp: int,
    page_size: int,
    graph_requests: int,
    max_total_tokens: int | None = None,
) -> MemoryPlan:
    """Return how the memory of each GPU is divided.

    Raises:
        EngineDeathError: there is no room for the weights, the KV pool or the CUDA graphs.
    """
    available = int(hardware.memory_gib * GIB) - CONTEXT_BYTES
    weights = model.weight_bytes // tp
    if weights > available:
        raise EngineDeathError(_out_of_memory(weights, available), weights_loaded=False)
    token = model.kv_bytes_per_token / min(tp, model.kv_heads)
    profiled = _pool_tokens(available, weights, fraction, token, page_size)
    asked = profiled if max_total_tokens is None else min(max_total_tokens, profiled)
    tokens = asked // page_size * page_size
    pool = int(tokens * token)
    if pool > available - weights:
        raise EngineDeathError(_out_of_memory(pool, available - weights))
    graphs = GRAPH_BYTES + graph_requests * GRAPH_REQUEST_BYTES
    free = available - weights - pool - graphs - WORKSPACE_BYTES
    if free < 0:
        raise EngineDeathError(_capture_failed(free, fraction))
    return MemoryPlan(
        kv_pool_tokens=tokens,
        kv_pool_bytes=pool,
        weight_bytes=weights,
        graph_bytes=graphs,
        free_bytes=free,
        token_bytes=_activation_bytes_per_token(model, tp),
        sampled_bytes=model.vocabulary * LOGIT_BYTES,
        profiled_tokens=profiled,
    )


def _pool_tokens(
    available: int, weights: int, fraction: float, token: float, page_size: int
) -> int:
    budget = available * fraction - weights
    if budget <= 0:
        least = math.ceil(weights / available * 1000 + 1) / 1000
        raise EngineDeathError(
            "ValueError: Loaded weights leave no GPU memory for the KV cache under "
            f"--mem-fraction-static={fraction:g}. Raise --mem-fraction-static above "
            f"{least:.3f} (minimum viable = 1 - available/pre). "
            "Not enough memory. Please try to increase --mem-fraction-static."
        )
    tokens = int(budget / token) // page_size * page_size
    if tokens <= 0:
        raise EngineDeathError(
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
        )
    return tokens


def _activation_bytes_per_token(model: Model, tp: int) -> float:
    """Gate and up projection of one layer, and a handful of hidden states beside them."""
    elements = 2 * model.intermediate / tp + 12 * model.hidden
    return elements * BYTES_PER_PARAMETER * FRAGMENTATION


def _out_of_memory(needed: float, free: float) -> str:
    return (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
        f"{needed / GIB:.2f} GiB. GPU 0 has {max(free, 0) / GIB:.2f} GiB free."
    )


def _capture_failed(free: float, fraction: float) -> str:
    return (
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate "
        f"{-free / GIB:.2f} GiB more than is free.\nPossible solutions:\n"
        "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7), "
        f"found {fraction:g}"
    )
