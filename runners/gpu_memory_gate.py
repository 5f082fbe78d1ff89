"""Holds a launch back until the GPUs' memory is back to the level from before our launches.

It waits at the start of a launch, not at its end: a good measurement is never lost because a later
wait failed, and a tuner that was started again still knows the level, which lies on disk.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runners.cause import Cause
from runners.errors import MachineFaultError
from runners.nvml_gpu import GpuHolder, GpuReader, GpuReading, is_visible, open_nvml

LEVELS = "gpu_levels"
LIMIT_S = 60.0
POLL_S = 0.5
LEAST_SLACK_MIB = 256
SLACK_SHARE = 0.01  # of the GPU's memory
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class GpuMemoryLevels:
    """The least memory seen in use on each GPU between launches, a file each in *folder*.

    A level holds for one boot of the machine.
    """

    folder: Path
    boot_id: str

    def note(self, gpu: GpuReading) -> None:
        """Keep what *gpu* uses now as its level, unless a lower one is known."""
        level, used = self.of(gpu), gpu.memory_used_mib
        if used is None or (level is not None and level <= used):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self._file(gpu).with_suffix(".new")
        new.write_text(json.dumps({"boot_id": self.boot_id, "used_mib": used}), encoding="utf-8")
        new.replace(self._file(gpu))

    def of(self, gpu: GpuReading) -> int | None:
        """Return the level of *gpu* in MiB, None when this boot has none yet."""
        if not self._file(gpu).exists():
            return None
        noted = json.loads(self._file(gpu).read_text(encoding="utf-8"))
        return int(noted["used_mib"]) if noted["boot_id"] == self.boot_id else None

    def above(self, gpu: GpuReading) -> int:
        """Return by how many MiB *gpu* is over its level and the slack; 0 when it is free."""
        level = self.of(gpu)
        if level is None or gpu.memory_used_mib is None:
            return 0
        slack = max(LEAST_SLACK_MIB, SLACK_SHARE * (gpu.memory_total_mib or 0))
        over = gpu.memory_used_mib - level
        return over if over > slack else 0

    def _file(self, gpu: GpuReading) -> Path:
        return self.folder / f"{gpu.uuid or gpu.index}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemoryGate:
    """Lets a launch through when every visible GPU is back to its level."""

    levels: GpuMemoryLevels
    devices: Sequence[str] | None  # as CUDA_VISIBLE_DEVICES names them; None is every GPU
    limit_s: float = LIMIT_S
    open_reader: Callable[[], GpuReader | None] = open_nvml
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def wait(
        self, say: Callable[[str], None], cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait for the memory; nothing to wait for without GPUs or their driver.

        Raises:
            MachineFaultError: the time is over and somebody still holds memory; nothing is killed.
        """
        reader = self.open_reader()
        if reader is None:
            return
        try:
            self._wait(reader, say, cancelled)
        finally:
            reader.close()

    def _wait(
        self, reader: GpuReader, say: Callable[[str], None], cancelled: Callable[[], bool]
    ) -> None:
        deadline = self.clock() + self.limit_s
        gpus = self._gpus(reader)
        while held := [gpu for gpu in gpus if self.levels.above(gpu)]:
            if cancelled():
                raise MachineFaultError("the user broke the launch off", cause=Cause.CANCELLED)
            if self.clock() >= deadline:
                raise self._held(reader, held)
            say("waiting for GPU memory")
            self.sleep(POLL_S)
            gpus = self._gpus(reader)
        for gpu in gpus:
            self.levels.note(gpu)

    def _gpus(self, reader: GpuReader) -> list[GpuReading]:
        return [gpu for gpu in reader.read() if is_visible(gpu, self.devices)]

    def _held(self, reader: GpuReader, held: Sequence[GpuReading]) -> MachineFaultError:
        found = "; ".join(
            f"GPU {gpu.index} ({gpu.uuid}) is {self.levels.above(gpu)} MiB above it, held by "
            f"{_names(reader.holders(gpu.index))}"
            for gpu in held
        )
        return MachineFaultError(
            "GPU memory must be back to the level from before our launches within "
            f"{self.limit_s:g} s, found that {found}. End these processes or give the tuner other "
            "GPUs (CUDA_VISIBLE_DEVICES), then start the study again; nothing was killed",
            cause=Cause.GPU_HELD,
        )


def gate_beside(launch_folder: Path, visible: str | None) -> GpuMemoryGate:
    """Return the gate whose levels lie beside the folders of a study's launches."""
    boot_id = BOOT_ID.read_text(encoding="ascii").strip()
    return GpuMemoryGate(
        levels=GpuMemoryLevels(launch_folder.parent / LEVELS, boot_id), devices=_devices(visible)
    )


@contextmanager
def memory_in_use(
    gpus: int, visible: str | None, open_reader: Callable[[], GpuReader | None] = open_nvml
) -> Iterator[Callable[[], int | None]]:
    """Give a function that reads the MiB in use on the visible GPUs; None without any."""
    reader = open_reader() if gpus else None
    if reader is None:
        yield lambda: None
        return
    try:
        yield lambda: _used_mib(reader, _devices(visible))
    finally:
        reader.close()


def _used_mib(reader: GpuReader, devices: Sequence[str] | None) -> int | None:
    used = [
        gpu.memory_used_mib
        for gpu in reader.read()
        if is_visible(gpu, devices) and gpu.memory_used_mib is not None
    ]
    return sum(used) if used else None


def _devices(visible: str | None) -> list[str] | None:
    return None if visible is None else visible.split(",")


def _names(holders: Sequence[GpuHolder]) -> str:
    return ", ".join(map(_name, holders)) or "no process that NVML shows (another container's?)"


def _name(holder: GpuHolder) -> str:
    memory = "unknown" if holder.memory_mib is None else holder.memory_mib
    return f"pid {holder.pid} {holder.name or '(name unknown)'} ({memory} MiB)"
