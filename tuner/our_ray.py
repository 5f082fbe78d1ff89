"""The processes of a Ray that we started: their death is noticed, and none of them outlives us.

Run as `python -m tuner.our_ray STUDY_FOLDER`, it waits for the end of its standard input, which
comes however the tuner dies, and then ends what is left of that Ray: its agents would stay.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from runners import janitor, process_table
from runners.errors import MachineFaultError

MARK = "TUNER_RAY"  # the study's folder; every process of that Ray carries it
KEEP_MARKS = "SPT_NOENV"  # without it, Ray's workers rename themselves over their environment
VITAL = ("raylet", "gcs_server")  # without them Ray waits for ever
LOOK_S = 0.2
PATIENCE_S = 20.0  # for Ray to let go of the main thread
STOPPED = 4  # exit code
DIED = "a process of the Ray that the tuner started (raylet or gcs_server) died"


class RayDiedError(BaseException):
    """Ends what the main thread is doing inside Ray, which would catch an Exception."""


@contextmanager
def marked(folder: Path) -> Iterator[None]:
    """Mark the Ray that is started inside as the one of the study in *folder*; leave none of it.

    Raises:
        MachineFaultError: a process of it cannot be killed.
    """
    sweep(folder)
    with _heir(folder):
        os.environ.update({MARK: str(folder), KEEP_MARKS: "1"})
        try:
            yield
        finally:
            del os.environ[MARK], os.environ[KEEP_MARKS]
            sweep(folder)


@contextmanager
def _heir(folder: Path) -> Iterator[None]:
    """Keep a process that sweeps when we no longer can."""
    command = [sys.executable, "-m", __name__, str(folder)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for us
    ):
        yield  # leaving closes its standard input and waits for it


def sweep(folder: Path) -> list[int]:
    """Kill what is left of the Ray of the study in *folder*; return the ids."""
    return janitor.kill_marked(MARK, str(folder))


@contextmanager
def death_noticed() -> Iterator[None]:
    """Raise RayDiedError in the main thread when a process that Ray cannot do without dies.

    What runs in Ray then may keep it for itself and return; leaving here raises it all the same.
    """
    vital = [p for p in process_table.descendants(os.getpid()) if process_table.name(p) in VITAL]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            if not all(map(process_table.alive, vital)):
                os.kill(os.getpid(), signal.SIGUSR1)
                _insist(over)
                return

    before = signal.signal(signal.SIGUSR1, _raise)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
        if not all(map(process_table.alive, vital)):
            raise RayDiedError(DIED)
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGUSR1, before)


def _raise(_: int, __: FrameType | None) -> None:
    raise RayDiedError(DIED)


def _insist(over: threading.Event) -> None:
    """End the tuner when Ray does not let go; the journal is complete at every moment."""
    if not over.wait(PATIENCE_S):
        print(f"stopped: {DIED}; the same command goes on", file=sys.stderr, flush=True)  # noqa: T201
        try:
            janitor.kill_marked(MARK, os.environ[MARK])
        except MachineFaultError as error:
            print(error, file=sys.stderr, flush=True)  # noqa: T201
        os._exit(STOPPED)


if __name__ == "__main__":
    sys.stdin.read()
    sweep(Path(sys.argv[1]))
