"""Removes the processes that a driver left behind when it died, by mark and never by name.

Every engine is started with two marks in its environment: the study it belongs to and the launch.
"""

import os
import signal
import time

from runners import process_table
from runners.errors import MachineFaultError

STUDY_MARK, LAUNCH_MARK = "TUNER_STUDY", "TUNER_LAUNCH"
KILL_LIMIT_S = 10.0


def sweep(study_id: str) -> list[int]:
    """Kill the processes a dead driver of *study_id* left on this machine; return their ids."""
    return kill_marked(STUDY_MARK, study_id)


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
            _kill(pid)
        killed += [pid for pid in found if pid not in killed]
        time.sleep(0.05)
    return killed


def _foes(variable: str, value: str) -> list[int]:
    spared = set(process_table.ancestors(os.getpid()))
    return [pid for pid in process_table.marked(variable, value) if pid not in spared]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended by itself in the meantime
