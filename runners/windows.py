"""What the engine and the GPUs did while the measured requests ran: sums and peaks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWindow:
    """The engine's own counters over the measured window; None where it does not tell."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt tokens, found in the prefix cache
    retractions: int | None = None
    running_peak: float | None = None
    queued_peak: float | None = None
    kv_usage_peak: float | None = None  # 0 to 1
    kv_pool_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWindow:
    """NVML's samples over the measured window, over all GPUs of the engine."""

    gpus: int
    memory_peak_gib: float  # sum over the GPUs
    memory_free_min_gib: float  # of the fullest GPU
    power_mean_w: float | None = None  # sum over the GPUs
    temperature_max_c: float | None = None
    sm_clock_mean_mhz: float | None = None
