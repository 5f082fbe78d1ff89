"""GPUs sampled on a thread while an engine is measured."""

import threading
from collections.abc import Callable, Sequence
from statistics import fmean
from types import TracebackType
from typing import Any, Self

from runners.nvml_gpu import IDLE, SLOWED_BY, GpuReader, GpuReading, is_visible, open_nvml
from runners.windows import GpuWindow

MIB_PER_GIB = 1024


class GpuSampler:
    """Samples GPUs on a thread while it is entered; costs nothing where there are none.

    *devices* are as in `is_visible`.
    """

    def __init__(
        self,
        devices: Sequence[int | str] | None = None,
        interval_s: float = 0.5,
        *,
        open_reader: Callable[[], GpuReader | None] = open_nvml,
    ) -> None:
        self._devices = devices
        self._interval_s = interval_s
        self._open_reader = open_reader
        self._reader: GpuReader | None = None
        self._samples: list[tuple[GpuReading, ...]] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._reader = self._open_reader()
        if self._reader is not None:
            self._thread = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def reset(self) -> None:
        """Forget the samples so far: the measured window starts now."""
        with self._lock:
            self._samples.clear()

    def window(self) -> GpuWindow | None:
        """Return what was seen since the last reset, None without GPUs."""
        self._sample()
        with self._lock:
            return _window(self._samples)

    def slowed_by(self) -> tuple[str, ...]:
        """Return why a GPU ran below its clocks since the last reset; idling is no reason."""
        with self._lock:
            seen = {why for sample in self._samples for gpu in sample for why in gpu.slowed_by}
        return tuple(why for why in SLOWED_BY.values() if why in seen and why != IDLE)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._sample()
            self._stop.wait(self._interval_s)

    def _sample(self) -> None:
        with self._lock:
            if self._reader is None:
                return
            sample = tuple(gpu for gpu in self._reader.read() if is_visible(gpu, self._devices))
            if sample:
                self._samples.append(sample)


def _window(samples: Sequence[tuple[GpuReading, ...]]) -> GpuWindow | None:
    used = [sum(g.memory_used_mib or 0 for g in sample) for sample in samples]
    free = [f for sample in samples for g in sample if (f := _free_mib(g)) is not None]
    if not free:
        return None
    return GpuWindow(
        gpus=max(len(sample) for sample in samples),
        memory_peak_gib=max(used) / MIB_PER_GIB,
        memory_free_min_gib=min(free) / MIB_PER_GIB,
        power_mean_w=_mean(
            sum(watts)
            for sample in samples
            if (watts := [g.power_w for g in sample if g.power_w is not None])
        ),
        temperature_max_c=max(
            (float(g.temperature_c) for s in samples for g in s if g.temperature_c is not None),
            default=None,
        ),
        sm_clock_mean_mhz=_mean(
            float(g.sm_clock_mhz) for s in samples for g in s if g.sm_clock_mhz is not None
        ),
    )


def _free_mib(gpu: GpuReading) -> int | None:
    if gpu.memory_total_mib is None or gpu.memory_used_mib is None:
        return None
    return gpu.memory_total_mib - gpu.memory_used_mib


def _mean(values: Any) -> float | None:
    found = list(values)
    return fmean(found) if found else None
