"""What the emulated engine says about itself: /server_info, /metrics, /v1/loads and the like."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from runners.emulated.deployment import Deployment
from runners.emulated.hardware import GIB
from runners.emulated.pacing import Lag
from runners.emulated.scheduler import EngineModel

VERSION = f"emulated-{version('sgl-tuner')}"


def model_info(deployment: Deployment) -> dict[str, Any]:
    """Return the body of /model_info."""
    return {
        "model_path": deployment.settings.model_path,
        "tokenizer_path": deployment.settings.model_path,
        "is_generation": True,
        "emulated": True,
    }


def models(deployment: Deployment) -> dict[str, Any]:
    """Return the body of /v1/models."""
    model = {
        "id": deployment.served_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "emulated",
        "root": deployment.settings.model_path,
        "max_model_len": deployment.context_length,
    }
    return {"object": "list", "data": [model]}


def server_info(
    engine: EngineModel, lag: Lag, words: Sequence[str], seed: int, startup_s: float
) -> dict[str, Any]:
    """Return the body of /server_info: the settings as resolved, and what became of them."""
    deployment, memory = engine.deployment, engine.deployment.memory
    p99_ms = lag.quantile_ms(0.99)
    return {
        **asdict(deployment.settings),
        "emulated_fault": list(map(str, deployment.settings.emulated_fault)),
        "served_model_name": deployment.served_name,
        "context_length": deployment.context_length,
        "random_seed": seed,
        "status": "ready",
        "version": VERSION,
        "startup_time": startup_s,
        "launch_command": shlex.join(words),
        "max_total_num_tokens": memory.kv_pool_tokens,
        "max_req_input_len": deployment.longest_prompt,
        "acting_schedule_policy": deployment.policy,
        "emulated": True,
        "hardware": deployment.hardware.name,
        "speed": deployment.settings.emulated_speed,
        "emulation_lag": {"p99_ms": p99_ms, "max_ms": lag.max_ms},
        "emulation_lag_p99_ms": p99_ms,
        "emulation_lag_max_ms": lag.max_ms,
        "internal_states": [
            {
                "effective_max_running_requests_per_dp": deployment.max_running_requests,
                "memory_usage": {
                    "weight": memory.weight_bytes / GIB,
                    "kvcache": memory.kv_pool_bytes / GIB,
                    "token_capacity": memory.kv_pool_tokens,
                    "graph": memory.graph_bytes / GIB,
                },
            }
        ],
    }


def loads(engine: EngineModel) -> dict[str, Any]:
    """Return the body of /v1/loads."""
    rank = {
        "dp_rank": 0,
        "num_running_reqs": engine.active,
        "num_waiting_reqs": len(engine.waiting),
        "num_used_tokens": engine.pool.used,
        "max_total_num_tokens": engine.pool.tokens,
        "max_running_requests": engine.deployment.max_running_requests,
        "token_usage": engine.pool.used / engine.pool.tokens,
    }
    return {"timestamp": time.time(), "version": VERSION, "dp_rank_count": 1, "loads": [rank]}


def metrics(engine: EngineModel) -> str:
    """Return the body of /metrics, under SGLang's names."""
    name = engine.deployment.served_name
    labels = f'engine_type="unified",model_name="{name}"'
    totals, pool = engine.totals, engine.pool
    rows: list[tuple[str, str, float, str]] = [
        ("num_running_reqs", "gauge", engine.active, ""),
        ("num_queue_reqs", "gauge", len(engine.waiting), ""),
        ("num_used_tokens", "gauge", pool.used, ""),
        ("token_usage", "gauge", pool.used / pool.tokens, ""),
        ("new_token_ratio", "gauge", engine.ratio.value, ""),
        ("max_total_num_tokens", "gauge", pool.tokens, ""),
        ("prompt_tokens_total", "counter", totals.prompt_tokens, ""),
        ("generation_tokens_total", "counter", totals.generation_tokens, ""),
        ("num_requests_total", "counter", totals.requests, ""),
        ("num_aborted_requests_total", "counter", totals.aborted, ""),
        ("num_retracted_requests_total", "counter", totals.retracted, ""),
    ]
    if pool.shares:
        cached = totals.cached_tokens
        rows.append(("cached_tokens_total", "counter", cached, ',cache_source="device"'))
    return "".join(
        f"# TYPE sglang:{metric} {kind}\nsglang:{metric}{{{labels}{more}}} {value}\n"
        for metric, kind, value, more in rows
    )
