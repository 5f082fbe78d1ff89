"""What NVML says about the GPUs: one reading, or samples taken while an engine is measured.

No GPU, no driver or no library is an ordinary answer, an empty one.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from types import TracebackType
from typing import Any, Protocol, Self

from runners.windows import GpuWindow

MIB = 1024**2
MIB_PER_GIB = 1024
IDLE = "idle"
# NVML's bits for why the clocks are lower than they could be
SLOWED_BY = {
    0x001: IDLE,
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "heat (software)",
    0x040: "heat (hardware)",
    0x080: "power brake",
    0x100: "display clocks",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU at one moment; what a GPU does not tell is None."""

    index: int
    uuid: str
    name: str
    driver: str | None = None
    cuda_driver: str | None = None  # highest CUDA version the driver bears
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    slowed_by: tuple[str, ...] = ()


class GpuReader(Protocol):
    """Reads every GPU of the machine; must be closed."""

    def read(self) -> Sequence[GpuReading]:
        """Return one reading for each GPU."""

    def close(self) -> None:
        """Let go of the library."""


class NvmlReader:
    """The real reader. Make it with `open_nvml`."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._driver = self._ask(nvml.nvmlSystemGetDriverVersion)
        version = self._ask(nvml.nvmlSystemGetCudaDriverVersion_v2)
        self._cuda = None if version is None else f"{version // 1000}.{version % 1000 // 10}"

    def read(self) -> list[GpuReading]:
        """Return one reading for each GPU; one that fell off the bus is left out."""
        count = self._ask(self._nvml.nvmlDeviceGetCount) or 0
        handles = (self._ask(self._nvml.nvmlDeviceGetHandleByIndex, i) for i in range(count))
        return [self._reading(i, h) for i, h in enumerate(handles) if h is not None]

    def close(self) -> None:
        """Let go of the library."""
        self._ask(self._nvml.nvmlShutdown)

    def _reading(self, index: int, handle: Any) -> GpuReading:
        nvml, ask = self._nvml, self._ask
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        bits = ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
        return GpuReading(
            index=index,
            uuid=ask(nvml.nvmlDeviceGetUUID, handle) or "",
            name=ask(nvml.nvmlDeviceGetName, handle) or "",
            driver=self._driver,
            cuda_driver=self._cuda,
            memory_total_mib=None if memory is None else memory.total // MIB,
            memory_used_mib=None if memory is None else memory.used // MIB,
            sm_clock_mhz=ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            power_w=_watts(ask(nvml.nvmlDeviceGetPowerUsage, handle)),
            power_limit_w=_watts(ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
            temperature_c=ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            slowed_by=slowed_by(bits),
        )

    def _ask(self, question: Callable[..., Any], *about: Any) -> Any:
        """Return NVML's answer, None when this GPU or driver does not know."""
        try:
            return question(*about)
        except self._nvml.NVMLError:
            return None


def open_nvml() -> GpuReader | None:
    """Return a reader of this machine's GPUs, None when it has no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return NvmlReader(pynvml)


def read_gpus(open_reader: Callable[[], GpuReader | None] = open_nvml) -> list[dict[str, Any]]:
    """Return one table for each GPU of this machine; empty without a GPU or its driver."""
    reader = open_reader()
    if reader is None:
        return []
    try:
        return [
            {**asdict(reading), "slowed_by": list(reading.slowed_by)} for reading in reader.read()
        ]
    finally:
        reader.close()


def slowed_by(bits: int) -> tuple[str, ...]:
    """Put NVML's reasons for lower clocks into words."""
    return tuple(word for bit, word in SLOWED_BY.items() if bits & bit)


class GpuSampler:
    """Samples GPUs on a thread while it is entered; costs nothing where there are none.

    *devices* are NVML's indices or the beginnings of UUIDs, as CUDA_VISIBLE_DEVICES takes them;
    None is every GPU.
    """

    def __init__(
        self,
        devices: Sequence[int | str] | None = None,
        interval_s: float = 0.5,
        *,
        open_reader: Callable[[], GpuReader | None] = open_nvml,
    ) -> None:
        self._devices = None if devices is None else {str(d).strip() for d in devices}
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
            sample = tuple(gpu for gpu in self._reader.read() if self._is_ours(gpu))
            if sample:
                self._samples.append(sample)

    def _is_ours(self, gpu: GpuReading) -> bool:
        if self._devices is None:
            return True
        return str(gpu.index) in self._devices or any(
            not device.isdigit() and device and gpu.uuid.startswith(device)
            for device in self._devices
        )


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


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
