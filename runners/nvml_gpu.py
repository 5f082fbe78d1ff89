"""What NVML says about the GPUs: one reading of each, and who holds their memory.

No GPU, no driver or no library is an ordinary answer, an empty one.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

MIB = 1024**2
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHolder:
    """A process with memory on a GPU; what NVML does not tell of it is None."""

    pid: int
    name: str | None = None
    memory_mib: int | None = None


class GpuReader(Protocol):
    """Reads every GPU of the machine; must be closed."""

    def read(self) -> Sequence[GpuReading]:
        """Return one reading for each GPU."""

    def holders(self, index: int) -> Sequence[GpuHolder]:
        """Return the processes on GPU *index*, as far as NVML sees them."""

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

    def holders(self, index: int) -> list[GpuHolder]:
        """Return the processes on GPU *index*, as far as NVML sees them."""
        nvml, ask = self._nvml, self._ask
        handle = ask(nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            return []
        found = [
            *(ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()),
            *(ask(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or ()),
        ]
        by_pid = {process.pid: process.usedGpuMemory for process in found}
        return [self._holder(pid, used) for pid, used in sorted(by_pid.items())]

    def close(self) -> None:
        """Let go of the library."""
        self._ask(self._nvml.nvmlShutdown)

    def _holder(self, pid: int, used: int | None) -> GpuHolder:
        name = self._ask(self._nvml.nvmlSystemGetProcessName, pid)
        return GpuHolder(pid=pid, name=name, memory_mib=None if used is None else used // MIB)

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


def is_visible(gpu: GpuReading, devices: Sequence[int | str] | None) -> bool:
    """Return whether *gpu* is one of *devices*, as CUDA_VISIBLE_DEVICES takes them.

    They are NVML's indices or the beginnings of UUIDs; None is every GPU.
    """
    if devices is None:
        return True
    words = [str(device).strip() for device in devices]
    return str(gpu.index) in words or any(
        word and not word.isdigit() and gpu.uuid.startswith(word) for word in words
    )


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
