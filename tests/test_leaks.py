"""Twenty launches in a row: the tuner holds no more at the end than after the first few."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from runners import listener, process_table
from tests.tuner_process import (
    assert_nothing_left,
    events,
    ray_of,
    shared_memory,
    start,
    wait_until,
    write_faulty_study,
)

SETTLED, LAST = 5, 19  # launches: by the first of them everything that is kept is there
MOST_GROWTH_MIB = 30.0  # of the driver, over 14 launches
FEW_DESCRIPTORS = 3  # a connection or a pipe that happens to be open when we look
FEW_PROCESSES = 1  # one that is on its way out


@dataclass(frozen=True)
class Held:
    """What a running tuner holds while an engine is under load."""

    processes: int
    driver_descriptors: int
    worker_descriptors: int
    shared: int  # entries in shared memory
    driver_mib: float


def held(folder: Path, driver: int) -> Held:
    """Look at the tuner from outside."""
    (worker,) = [p for p in ray_of(folder) if process_table.name(p).startswith("ray::Implicit")]
    return Held(
        processes=len(process_table.descendants(driver)),
        driver_descriptors=_descriptors(driver),
        worker_descriptors=_descriptors(worker),
        shared=len(list(Path("/dev/shm").iterdir())),  # noqa: S108
        driver_mib=_resident_mib(driver),
    )


def _descriptors(pid: int) -> int:
    return len(list(process_table.open_files(pid)))


def _resident_mib(pid: int) -> float:
    pages = int(Path("/proc", str(pid), "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def held_in_launch(folder: Path, process: "subprocess.Popen[bytes]", number: int) -> Held:
    """Wait for the load of launch *number*, or of the next one that we catch, and look."""

    def measures() -> bool:
        assert process.poll() is None, (folder / "tuner.err").read_text()
        running = len(events(folder, "launched")) - 1
        file = folder / "studies" / "small" / "launches" / f"{running:03d}" / "phase"
        try:
            return running >= number and file.read_text().startswith("measuring")
        except FileNotFoundError:
            return False

    wait_until(measures, what=f"launch {number} measures", limit_s=240)
    return held(folder, process.pid)


@pytest.mark.slow
def test_twenty_launches_leave_no_more_than_five(tmp_path: Path) -> None:
    """Processes, descriptors, shared memory and memory do not grow from launch to launch."""
    port, before = listener.free_port(), shared_memory()
    write_faulty_study(
        tmp_path, "leave_shared_memory", port=port, launches=LAST + 1, rounds=24, tracking=True
    )
    process = start(tmp_path, "tune", "study.toml")

    early = held_in_launch(tmp_path, process, SETTLED)
    late = held_in_launch(tmp_path, process, LAST)

    assert process.wait(timeout=120) == 0
    assert late.processes <= early.processes + FEW_PROCESSES
    assert late.driver_descriptors <= early.driver_descriptors + FEW_DESCRIPTORS
    assert late.worker_descriptors <= early.worker_descriptors + FEW_DESCRIPTORS
    assert late.shared <= early.shared
    assert late.driver_mib - early.driver_mib < MOST_GROWTH_MIB
    assert len(events(tmp_path, "finished")) >= LAST + 1
    assert_nothing_left(tmp_path, port=port, shared_before=before)
