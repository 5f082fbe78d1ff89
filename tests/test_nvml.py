"""Reading and sampling GPUs, with a made-up machine in place of NVML."""

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from runners import nvml_gpu
from runners.gpu_sampler import GpuSampler
from runners.nvml_gpu import (
    GpuHolder,
    GpuReading,
    NvmlReader,
    open_nvml,
    read_gpus,
    slowed_by,
)


class ScriptedGpus:
    """Gives out the next reading of a script each time, and the last one for ever."""

    def __init__(self, *script: Sequence[GpuReading]) -> None:
        self.script = list(script)
        self.reads = 0
        self.closed = False

    def read(self) -> Sequence[GpuReading]:
        at = min(self.reads, len(self.script) - 1)
        self.reads += 1
        return self.script[at]

    def holders(self, index: int) -> Sequence[GpuHolder]:
        return ()

    def close(self) -> None:
        self.closed = True


def gpu(index: int, used_mib: int, **more: object) -> GpuReading:
    values = {"uuid": f"GPU-{index}{index}aa", "name": "Made-up", "memory_total_mib": 8192}
    return GpuReading(index=index, memory_used_mib=used_mib, **{**values, **more})  # type: ignore[arg-type]  # a table of fields


def sampler_of(gpus: ScriptedGpus, devices: Sequence[int | str] | None = None) -> GpuSampler:
    """Return a sampler whose thread takes one sample and then waits for the end."""
    return GpuSampler(devices, interval_s=3600, open_reader=lambda: gpus)


def test_a_machine_without_gpus_has_no_readings_and_no_window() -> None:
    """No driver is an ordinary answer: nothing is raised and nothing is made up."""
    assert read_gpus(lambda: None) == []
    with GpuSampler(open_reader=lambda: None) as sampler:
        sampler.reset()
        assert sampler.window() is None
        assert sampler.slowed_by() == ()


def test_the_real_library_is_opened_or_politely_missing() -> None:
    """With NVML's library present but no driver, opening says None; with one, it reads."""
    reader = open_nvml()
    if reader is None:
        assert read_gpus() == []
    else:
        reader.close()
        assert all(g["memory_total_mib"] > 0 for g in read_gpus())


def test_the_window_sums_memory_over_gpus_and_keeps_the_fullest() -> None:
    """Peak memory is the highest sum; free memory is that of the fullest GPU at its worst."""
    gpus = ScriptedGpus(
        [gpu(0, 1024), gpu(1, 2048)], [gpu(0, 7168), gpu(1, 1024)], [gpu(0, 512), gpu(1, 512)]
    )
    with sampler_of(gpus) as sampler:
        sampler.window()
        sampler.window()
        window = sampler.window()
    assert window is not None
    assert window.gpus == 2
    assert window.memory_peak_gib == pytest.approx(8.0)
    assert window.memory_free_min_gib == pytest.approx(1.0)


def test_a_reset_forgets_the_start_up_peak() -> None:
    """What a GPU held while the engine started is not part of the measured window."""
    gpus = ScriptedGpus([gpu(0, 8000)])
    with sampler_of(gpus) as sampler:
        assert sampler.window() is not None
        gpus.script[:] = [[gpu(0, 1024)]]
        sampler.reset()
        window = sampler.window()
    assert window is not None
    assert window.memory_peak_gib == pytest.approx(1.0)


def test_power_is_summed_over_gpus_and_averaged_over_time() -> None:
    """Two GPUs at 300 W are 600 W; a GPU that hides its power is left out, not 0."""
    gpus = ScriptedGpus([gpu(0, 1, power_w=300.0), gpu(1, 1, power_w=300.0)])
    hidden = ScriptedGpus([gpu(0, 1)])
    with sampler_of(gpus) as sampler, sampler_of(hidden) as blind:
        window, nothing = sampler.window(), blind.window()
    assert window is not None
    assert nothing is not None
    assert window.power_mean_w == pytest.approx(600.0)
    assert nothing.power_mean_w is None


@pytest.mark.parametrize("devices", [[1], ["1"], ["GPU-11"], ["GPU-11aa"]])
def test_only_the_engines_gpus_count(devices: list[int | str]) -> None:
    """A device is named by index or by the start of its UUID, as CUDA does."""
    gpus = ScriptedGpus([gpu(0, 8000), gpu(1, 1024)])
    with sampler_of(gpus, devices) as sampler:
        window = sampler.window()
    assert window is not None
    assert window.gpus == 1
    assert window.memory_peak_gib == pytest.approx(1.0)


def test_reasons_for_lower_clocks_are_words() -> None:
    """NVML's bits become words, and an idle GPU is not called slowed down."""
    assert slowed_by(0) == ()
    assert slowed_by(0x4 | 0x40) == ("power cap", "heat (hardware)")
    gpus = ScriptedGpus([gpu(0, 1, slowed_by=("idle", "power cap"))])
    with sampler_of(gpus) as sampler:
        sampler.window()
        assert sampler.slowed_by() == ("power cap",)


def test_the_reader_is_closed_at_the_end() -> None:
    """NVML is let go when the sampler ends, and no thread stays behind."""
    gpus = ScriptedGpus([gpu(0, 1)])
    with sampler_of(gpus):
        pass
    assert gpus.closed
    assert sampler_of(gpus).window() is None


class SulkyNvml:
    """An NVML whose one GPU answers nothing but its memory."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        """As NVML's own."""

    class _Memory:
        total, used = 80 * 1024**3, 3 * 1024**3

    def __getattr__(self, name: str) -> object:
        known = {
            "nvmlSystemGetCudaDriverVersion_v2": 12080,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetMemoryInfo": self._Memory,
            "nvmlDeviceGetComputeRunningProcesses": [
                SimpleNamespace(pid=7, usedGpuMemory=2 * 1024**3),
                SimpleNamespace(pid=5, usedGpuMemory=None),
            ],
        }

        def answer(*_: object) -> object:
            if name in known:
                return known[name]
            raise self.NVMLError(name)

        return answer


def test_what_a_gpu_does_not_tell_is_none() -> None:
    """A query that the GPU does not support leaves that one field empty."""
    (reading,) = NvmlReader(SulkyNvml()).read()
    assert (reading.memory_total_mib, reading.memory_used_mib) == (81920, 3072)
    assert reading.cuda_driver == "12.8"
    assert reading.power_w is None
    assert reading.temperature_c is None
    assert reading.slowed_by == ()


def test_the_holders_of_a_gpu_are_told_as_far_as_it_tells() -> None:
    """A process whose memory or name NVML hides is still listed, without them."""
    assert NvmlReader(SulkyNvml()).holders(0) == [
        GpuHolder(pid=5),
        GpuHolder(pid=7, memory_mib=2048),
    ]


def test_the_names_used_are_names_of_the_library() -> None:
    """Every NVML function and constant this file calls exists in the installed library."""
    source = Path(str(nvml_gpu.__file__)).read_text(encoding="utf-8")
    names = set(re.findall(r"nvml\.(nvml\w+|NVML\w+)", source))
    library = importlib.import_module("pynvml")
    assert len(names) > 10
    assert [name for name in names if not hasattr(library, name)] == []
