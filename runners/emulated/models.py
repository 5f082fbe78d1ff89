"""The models that can be emulated, in bf16: the sizes that their public config.json states.

Parameter counts are those of the published checkpoints (the sum over the safetensors index).
"""

from dataclasses import dataclass

BYTES_PER_PARAMETER = 2  # bf16, weights and KV cache alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A dense decoder-only transformer with grouped-query attention."""

    name: str
    aliases: tuple[str, ...]  # the ids under which the checkpoint is published
    parameters: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_context: int
    tied_embeddings: bool  # the output layer reuses the embedding table

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.parameters * BYTES_PER_PARAMETER

    @property
    def head_parameters(self) -> int:
        """Parameters of the output layer, which only sampled positions pass."""
        return self.vocabulary * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Parameters that every token passes: neither embedding nor output layer."""
        tables = 1 if self.tied_embeddings else 2
        return self.parameters - tables * self.head_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token leaves in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_PARAMETER


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model(
            name="Llama-3.1-8B",
            aliases=("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"),
            parameters=8_030_261_248,
            layers=32,
            hidden=4096,
            intermediate=14336,
            heads=32,
            kv_heads=8,
            head_dim=128,
            vocabulary=128256,
            max_context=131072,
            tied_embeddings=False,
        ),
        Model(
            name="Llama-3.1-70B",
            aliases=("meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B-Instruct"),
            parameters=70_553_706_496,
            layers=80,
            hidden=8192,
            intermediate=28672,
            heads=64,
            kv_heads=8,
            head_dim=128,
            vocabulary=128256,
            max_context=131072,
            tied_embeddings=False,
        ),
        Model(
            name="Llama-3.2-1B",
            aliases=("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct"),
            parameters=1_235_814_400,
            layers=16,
            hidden=2048,
            intermediate=8192,
            heads=32,
            kv_heads=8,
            head_dim=64,
            vocabulary=128256,
            max_context=131072,
            tied_embeddings=True,
        ),
        Model(
            name="Qwen2.5-7B",
            aliases=("Qwen/Qwen2.5-7B-Instruct",),
            parameters=7_615_616_512,
            layers=28,
            hidden=3584,
            intermediate=18944,
            heads=28,
            kv_heads=4,
            head_dim=128,
            vocabulary=152064,
            max_context=32768,
            tied_embeddings=False,
        ),
        Model(
            name="Qwen2.5-0.5B",
            aliases=("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B-Instruct"),
            parameters=494_032_768,
            layers=24,
            hidden=896,
            intermediate=4864,
            heads=14,
            kv_heads=2,
            head_dim=64,
            vocabulary=151936,
            max_context=32768,
            tied_embeddings=True,
        ),
    )
}

_BY_ALIAS = {alias: model for model in MODELS.values() for alias in model.aliases}


def model_named(name: str) -> Model:
    """Return the model called *name*, by our short name or the id it is published under.

    Raises:
        ValueError: there is no such model in the table.
    """
    found = MODELS.get(name) or _BY_ALIAS.get(name)
    if found is None:
        raise ValueError(
            f"the emulated model must be one of {', '.join(MODELS)} "
            f"(or a published id such as {next(iter(_BY_ALIAS))}), found {name!r}"
        )
    return found
