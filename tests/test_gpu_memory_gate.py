"""Launches wait for the GPUs' memory, with a made-up machine in place of NVML."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from runners.cause import Cause
from runners.errors import MachineFaultError
from runners.gpu_memory_gate import GpuMemoryGate, GpuMemoryLevels, memory_in_use
from runners.nvml_gpu import GpuHolder, GpuReading


class ScriptedGpus:
    """A machine whose GPUs use, at each reading, the next MiB of the script; the last for ever."""

    def __init__(self, *script: Sequence[int], holders: Sequence[GpuHolder] = ()) -> None:
        self.script = script
        self.reads = 0
        self.closed = False
        self._holders = holders

    def read(self) -> list[GpuReading]:
        used = self.script[min(self.reads, len(self.script) - 1)]
        self.reads += 1
        return [
            GpuReading(
                index=i, uuid=f"GPU-{i}{i}", name="G", memory_total_mib=80000, memory_used_mib=mib
            )
            for i, mib in enumerate(used)
        ]

    def holders(self, index: int) -> Sequence[GpuHolder]:
        return self._holders

    def close(self) -> None:
        self.closed = True


class Clock:
    """A clock that only sleeping moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def wait(
    folder: Path,
    gpus: ScriptedGpus | None,
    *,
    boot: str = "boot-1",
    devices: Sequence[str] | None = None,
    cancelled: bool = False,
) -> float:
    """Pass the gate as a new tuner would; return the seconds waited."""
    clock = Clock()
    gate = GpuMemoryGate(
        levels=GpuMemoryLevels(folder / "levels", boot),
        devices=devices,
        open_reader=lambda: gpus,
        clock=clock,
        sleep=clock.sleep,
    )
    gate.wait(lambda _: None, lambda: cancelled)
    return clock.now_s


def test_a_machine_without_gpus_has_no_gate(tmp_path: Path) -> None:
    """Without a driver nothing is waited for and nothing is written."""
    assert wait(tmp_path, None) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_launch_waits_until_the_memory_is_back(tmp_path: Path) -> None:
    """The first launch notes the level; the next one waits for it and no longer."""
    wait(tmp_path, ScriptedGpus([500]))
    gpus = ScriptedGpus([70000], [30000], [1300])
    assert wait(tmp_path, gpus) == pytest.approx(1.0)
    assert gpus.closed


def test_who_still_holds_memory_is_named(tmp_path: Path) -> None:
    """After a minute the launch is a fault that says which GPU, how much and who."""
    wait(tmp_path, ScriptedGpus([500, 500]))
    holders = [GpuHolder(pid=41, name="python", memory_mib=1900), GpuHolder(pid=42)]
    gpus = ScriptedGpus([500, 2500], holders=holders)
    with pytest.raises(MachineFaultError) as caught:
        wait(tmp_path, gpus)
    assert caught.value.cause is Cause.GPU_HELD
    assert not caught.value.lasting
    assert "GPU 1 (GPU-11) is 2000 MiB above" in str(caught.value)
    assert "pid 41 python (1900 MiB), pid 42 (name unknown) (unknown MiB)" in str(caught.value)
    assert gpus.closed
    assert gpus.reads == 121


def test_only_visible_gpus_are_waited_for(tmp_path: Path) -> None:
    """Another launch's memory on another GPU holds nobody back."""
    wait(tmp_path, ScriptedGpus([500, 500]))
    assert wait(tmp_path, ScriptedGpus([500, 70000]), devices=["0"]) == 0
    assert wait(tmp_path, ScriptedGpus([500, 70000]), devices=["GPU-00"]) == 0


def test_the_lowest_level_counts_and_a_reboot_voids_it(tmp_path: Path) -> None:
    """A level sinks and never rises while the machine is up."""
    wait(tmp_path, ScriptedGpus([5000]))
    wait(tmp_path, ScriptedGpus([1000]))
    wait(tmp_path, ScriptedGpus([1700]))
    with pytest.raises(MachineFaultError, match="1001 MiB above"):
        wait(tmp_path, ScriptedGpus([2001]))
    assert wait(tmp_path, ScriptedGpus([2001]), boot="boot-2") == 0


def test_a_broken_off_launch_waits_no_longer(tmp_path: Path) -> None:
    """The user need not sit out the wait."""
    wait(tmp_path, ScriptedGpus([500]))
    with pytest.raises(MachineFaultError) as caught:
        wait(tmp_path, ScriptedGpus([70000]), cancelled=True)
    assert caught.value.cause is Cause.CANCELLED


def test_a_start_can_be_followed_by_the_memory_it_takes() -> None:
    """The reader sums the visible GPUs; an engine without GPUs asks nobody."""
    gpus = ScriptedGpus([500, 700])
    with memory_in_use(1, "1", lambda: gpus) as used, memory_in_use(0, None, lambda: gpus) as none:
        assert (used(), none()) == (700, None)
    assert gpus.closed
