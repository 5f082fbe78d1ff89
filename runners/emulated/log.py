"""The lines an SGLang log has, on stderr, with the time in front."""

import sys
import time

from runners.emulated.deployment import Deployment
from runners.emulated.hardware import GIB, Hardware
from runners.emulated.models import Model
from runners.emulated.scheduler import EngineModel, StepResult

DECODE_LOG_INTERVAL = 40  # decode steps per line


def say(line: str) -> None:
    """Write one line."""
    sys.stderr.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {line}\n")
    sys.stderr.flush()


def banner(model: str, hardware: str, speed: float) -> str:
    """Return the first line of every log."""
    return (
        f"EMULATED engine: a model of {model} on {hardware} at {speed:g} times life speed; "
        "no figure it gives is a measurement of real hardware"
    )


def weights(model: Model, hardware: Hardware, tp: int, elapsed_s: float) -> str:
    """Return what is said when the weights are loaded."""
    used = model.weight_bytes / tp / GIB
    return (
        f"Load weight end. elapsed={elapsed_s:.2f} s, type={model.name}, "
        f"avail mem={hardware.memory_gib - used:.2f} GB, mem usage={used:.2f} GB."
    )


def capacity(deployment: Deployment) -> tuple[str, ...]:
    """Return what is said when the KV cache is there."""
    settings, memory = deployment.settings, deployment.memory
    half = memory.kv_pool_bytes / 2 / GIB
    return (
        f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {memory.kv_pool_tokens}, "
        f"K size: {half:.2f} GB, V size: {half:.2f} GB",
        *deployment.warnings,
        f"max_total_num_tokens={memory.kv_pool_tokens}, "
        f"chunked_prefill_size={settings.chunked_prefill_size}, "
        f"max_prefill_tokens={settings.max_prefill_tokens}, "
        f"max_running_requests={deployment.max_running_requests}, "
        f"context_len={deployment.context_length}, "
        f"available_gpu_mem={memory.free_bytes / GIB:.2f} GB",
    )


class StepLog:
    """A line for every prefill and for every 40th decode step."""

    def __init__(self, engine: EngineModel) -> None:
        self._engine = engine
        self._decodes = 0
        self._tokens = 0
        self._seconds = 0.0

    def note(self, result: StepResult) -> None:
        """Take one step; write a line if one is due."""
        if result.new_tokens:
            say(self._prefill(result))
        if not result.decoded:
            return
        self._decodes += 1
        self._tokens += len(result.decoded)
        self._seconds += result.duration_s
        if self._decodes % DECODE_LOG_INTERVAL == 0:
            say(self._decode(len(result.decoded)))
            self._tokens, self._seconds = 0, 0.0

    def _prefill(self, result: StepResult) -> str:
        engine = self._engine
        usage = engine.pool.used / engine.pool.tokens
        return (
            f"Prefill batch, #new-seq: {result.admitted}, #new-token: {result.new_tokens}, "
            f"#cached-token: {result.cached_tokens}, token usage: {usage:.2f}, "
            f"#running-req: {engine.active}, #queue-req: {len(engine.waiting)}, cuda graph: "
            f"False, input throughput (token/s): {result.new_tokens / result.duration_s:.2f}"
        )

    def _decode(self, running: int) -> str:
        engine = self._engine
        graph = running <= engine.deployment.graph_requests
        return (
            f"Decode batch, #running-req: {running}, #token: {engine.pool.used}, "
            f"token usage: {engine.pool.used / engine.pool.tokens:.2f}, cuda graph: {graph}, "
            f"gen throughput (token/s): {self._tokens / self._seconds:.2f}, "
            f"#queue-req: {len(engine.waiting)}"
        )
