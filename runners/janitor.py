"""Removes the processes that a driver or a worker left behind when it died, by mark, not by name.

Every engine is started with two marks in its environment: the study it belongs to and the launch.
So is its guardian, which stops it in order; nobody is shot while a guardian is still at work.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from runners import guardian, process_table
from runners.errors import MachineFaultError

STUDY_MARK, LAUNCH_MARK = "TUNER_STUDY", "TUNER_LAUNCH"
KILL_LIMIT_S = 10.0


def sweep(study_id: str, *, patience_s: float = 0.0) -> list[int]:
    """End the processes a dead driver of *study_id* left on this machine; return their ids.

    Guardians stop their engines and clear up what those leave, for *patience_s*; then all is shot.
    """
    asked: set[int] = set()
    deadline = time.monotonic() + patience_s
    while (found := set(guardians(study_id))) and time.monotonic() < deadline:
        for pid in found - asked:
            _send(pid, signal.SIGTERM)
        asked |= found
        time.sleep(0.05)
    return [*asked, *(pid for pid in kill_marked(STUDY_MARK, study_id) if pid not in asked)]


def await_end(study_id: str, launch_folder: Path, *, patience_s: float) -> None:
    """Wait until what an earlier launch started is gone: its worker died, its guardian stops it.

    Raises:
        MachineFaultError: it is not gone after *patience_s*.
    """
    deadline = time.monotonic() + patience_s
    while launch_folder in guardians(study_id).values():
        if time.monotonic() > deadline:
            raise MachineFaultError(
                f"the engine of {launch_folder}, whose Ray worker died, must end within "
                f"{patience_s:g} s, found it still running",
                lasting=True,
            )
        time.sleep(0.05)


def guardians(study_id: str) -> dict[int, Path]:
    """Return the living guardians of a study on this machine, each with its launch's folder."""
    return dict(_guardians(study_id))


def _guardians(study_id: str) -> Iterator[tuple[int, Path]]:
    for pid in _foes(STUDY_MARK, study_id):
        words = process_table.command(pid)
        if guardian.__file__ in words:
            _, _, log = words[words.index(guardian.__file__) + 1 :][:3]
            yield pid, Path(log).parent


def kill_marked(variable: str, value: str) -> list[int]:
    """Kill what was started with *variable* set to *value*, never ourselves or our ancestors.

    Raises:
        MachineFaultError: something of it cannot be killed.
    """
    killed: list[int] = []
    deadline = time.monotonic() + KILL_LIMIT_S
    while found := _foes(variable, value):
        if time.monotonic() > deadline:
            raise MachineFaultError(
                f"processes {found} of an engine we started cannot be killed; the machine "
                "may need a restart",
                lasting=True,
            )
        for pid in found:
            _send(pid, signal.SIGKILL)
        killed += [pid for pid in found if pid not in killed]
        time.sleep(0.05)
    return killed


def _foes(variable: str, value: str) -> list[int]:
    spared = set(process_table.ancestors(os.getpid()))
    return [pid for pid in process_table.marked(variable, value) if pid not in spared]


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended by itself in the meantime
