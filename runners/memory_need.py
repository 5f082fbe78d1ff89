"""What a model needs of a GPU's memory, by its own files: weights, and keys and values per token.

Estimates for people before anything starts. The engine's own account is what counts later.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 1024**3
MIB = 1024**2
BF16 = 2
BYTES = {"float32": 4, "fp8": 1}  # anything else is taken as two bytes
# Layers whose state is not a plain cache of keys and values: no estimate.
OTHER_CACHES = ("kv_lora_rank", "mamba_d_state", "ssm_state_size", "linear_num_key_heads")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The bytes of a model; None where its files do not tell."""

    weight_bytes: int | None
    kv_bytes_per_token: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a launch spreads the model over GPUs, and how much of each it may take."""

    gpus: int
    mem_fractions: tuple[float, ...] = ()  # the ends of the searched range, or the fixed one
    weights_shrink: bool = False  # quantised while loaded, or partly kept in host memory


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """The memory of the GPUs a launch may use; the smallest of them counts. Or the machine's."""

    name: str
    total_bytes: int
    free_bytes: int


def model_size(folder: Path) -> ModelSize | None:
    """Read the size of the model in *folder*; None without a config.json."""
    path = folder / "config.json"
    if not path.is_file():
        return None
    config = json.loads(path.read_text(encoding="utf-8"))
    text = config.get("text_config") or config
    width = BYTES.get(str(text.get("dtype") or text.get("torch_dtype")), BF16)
    weights = _index_bytes(folder) or _file_bytes(folder)
    if weights is None:
        parameters = _parameters(text)
        weights = None if parameters is None else parameters * width
    return ModelSize(weight_bytes=weights, kv_bytes_per_token=_kv_bytes(text, width))


def smallest(gpus: Sequence[Mapping[str, Any]], visible: str | None) -> GpuMemory | None:
    """Return the GPU with the least free memory of those *visible*; None without GPUs."""
    names = None if visible is None else [v.strip() for v in visible.split(",") if v.strip()]
    found = [
        GpuMemory(
            name=f"GPU {gpu['index']} ({gpu['name']})",
            total_bytes=gpu["memory_total_mib"] * MIB,
            free_bytes=(gpu["memory_total_mib"] - gpu["memory_used_mib"]) * MIB,
        )
        for gpu in gpus
        if gpu["memory_total_mib"] is not None and gpu["memory_used_mib"] is not None
        if names is None or any(_is(gpu, name) for name in names)
    ]
    return min(found, key=lambda gpu: gpu.free_bytes, default=None)


def _is(gpu: Mapping[str, Any], name: str) -> bool:
    return str(gpu["index"]) == name or (not name.isdigit() and gpu["uuid"].startswith(name))


def cannot_fit(size: ModelSize, layout: Layout, gpu: GpuMemory) -> str | None:
    """Say why no setting can help: the weights alone are more than a GPU holds."""
    share = _share(size, layout)
    if share is None or share <= gpu.total_bytes or layout.weights_shrink:
        return None
    return (
        f"the weights must fit: {_gib(size.weight_bytes or 0)} over {layout.gpus} GPU(s) are "
        f"{_gib(share)} each, and {gpu.name} has {_gib(gpu.total_bytes)}; raise --tp-size"
    )


def memory_notes(
    size: ModelSize, layout: Layout, gpu: GpuMemory, longest_tokens: int
) -> Iterator[str]:
    """Say what the numbers foretell about memory; nothing where they are missing."""
    share = _share(size, layout)
    if share is None:
        return
    if share > gpu.free_bytes and not layout.weights_shrink:
        yield (
            f"memory: the weights take about {_gib(share)} of each GPU, and {gpu.name} has "
            f"{_gib(gpu.free_bytes)} of {_gib(gpu.total_bytes)} free now"
        )
    if size.kv_bytes_per_token is None:
        return
    token = size.kv_bytes_per_token / layout.gpus
    for fraction in layout.mem_fractions:
        pool = max(fraction * gpu.total_bytes - share, 0)
        yield _pool_note(fraction, int(pool / token), longest_tokens)


def unchunked_note(prefill_tokens: int, gpus: int, memory: GpuMemory) -> str | None:
    """Say that SGLang would set aside more than there is, as it does with chunking off.

    The reserve is that of SGLang 0.5.23, without the part for its graphs.
    """
    reserve = (512 + 1.5 * max(prefill_tokens, 2048) + gpus * 128) * MIB
    if reserve < memory.total_bytes:
        return None
    return (
        f"memory: with chunking off, SGLang sets {_gib(reserve)} aside for prefills unless "
        f"--mem-fraction-static is given, and {memory.name} has {_gib(memory.total_bytes)}: "
        "no launch without it will start"
    )


def host_memory() -> GpuMemory:
    """Return the memory of this machine, where an engine without a GPU lives."""
    page, total, free = (
        os.sysconf(f"SC_{n}") for n in ("PAGE_SIZE", "PHYS_PAGES", "AVPHYS_PAGES")
    )
    return GpuMemory(name="this machine", total_bytes=page * total, free_bytes=page * free)


def _pool_note(fraction: float, tokens: int, longest_tokens: int) -> str:
    start = f"memory: at mem_fraction_static = {fraction:g} "
    if tokens < longest_tokens:
        return (
            f"{start}about {tokens} tokens fit beside the weights, fewer than the longest "
            f"request's {longest_tokens}"
        )
    return (
        f"{start}about {tokens} tokens fit beside the weights: "
        f"{tokens // longest_tokens} of the longest requests at once"
    )


def _share(size: ModelSize, layout: Layout) -> float | None:
    return None if size.weight_bytes is None else size.weight_bytes / layout.gpus


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"


def _index_bytes(folder: Path) -> int | None:
    path = folder / "model.safetensors.index.json"
    if not path.is_file():
        return None
    metadata = json.loads(path.read_text(encoding="utf-8")).get("metadata") or {}
    return int(metadata["total_size"]) if "total_size" in metadata else None


def _file_bytes(folder: Path) -> int | None:
    for pattern in ("*.safetensors", "*.bin"):
        if files := list(folder.glob(pattern)):
            return sum(file.stat().st_size for file in files)
    return None


def _first(config: Mapping[str, Any], *names: str) -> int | None:
    return next((int(config[name]) for name in names if config.get(name) is not None), None)


def _parameters(config: Mapping[str, Any]) -> int | None:
    """Estimate the parameters of a dense transformer."""
    hidden, layers = _first(config, "hidden_size", "n_embd"), _layers(config)
    vocabulary = _first(config, "vocab_size")
    if hidden is None or layers is None or vocabulary is None or any(e in config for e in EXPERTS):
        return None
    inner = _first(config, "intermediate_size", "n_inner") or 4 * hidden
    heads = _first(config, "num_attention_heads", "n_head") or 1
    head = _first(config, "head_dim") or hidden // heads
    kv_heads = _first(config, "num_key_value_heads") or heads
    matrices = 3 if "intermediate_size" in config else 2  # gated, or not
    layer = hidden * head * 2 * (heads + kv_heads) + matrices * hidden * inner
    tables = 1 if config.get("tie_word_embeddings", "n_embd" in config) else 2
    return layers * layer + tables * vocabulary * hidden


def _kv_bytes(config: Mapping[str, Any], width: int) -> int | None:
    layers = _layers(config)
    hidden = _first(config, "hidden_size", "n_embd")
    heads = _first(config, "num_attention_heads", "n_head")
    if layers is None or hidden is None or heads is None:
        return None
    kinds = set(config.get("layer_types") or ()) - {"full_attention"}
    if kinds or any(config.get(name) for name in OTHER_CACHES):
        return None
    head = _first(config, "head_dim") or hidden // heads
    kv_heads = _first(config, "num_key_value_heads") or heads
    return 2 * layers * kv_heads * head * min(width, BF16)


def _layers(config: Mapping[str, Any]) -> int | None:
    return _first(config, "num_hidden_layers", "n_layer")
