"""How many tokens a request and its answer may have together, as far as it is known beforehand."""

import json
from pathlib import Path

from runners.spec import EngineSpec
from search_spaces.flag_values import fixed_value


def context_length(engine: EngineSpec) -> int | None:
    """Return what the flags or the model state, None when only the engine will know."""
    if (fixed := fixed_value(engine.flags, "--context-length")) is not None:
        return int(fixed) if fixed.isdecimal() else None
    if engine.emulated:
        return _emulated(engine.model)
    return None if engine.model_folder is None else _stated(engine.model_folder)


def _emulated(name: str) -> int:
    from runners.emulated.models import model_named

    return model_named(name).max_context


def _stated(model: Path) -> int | None:
    """Read the model's own figure; one whose positions are rescaled may take more than it says."""
    path = model / "config.json"
    if not path.is_file():
        return None
    config = json.loads(path.read_text(encoding="utf-8"))
    config = config.get("text_config") or config
    length = config.get("max_position_embeddings")
    return None if config.get("rope_scaling") or not isinstance(length, int) else length
