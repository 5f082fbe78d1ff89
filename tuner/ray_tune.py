"""Ray Tune runs the launches. The only file that imports ray.

Ray's own experiment state is thrown away: the journal is the truth, and a study is resumed by
running a new experiment over it (restoring Ray's would measure again what was already told).
Call `tuner.switches.set_switches` before importing this file.
"""

import json
import logging
import os
import shutil
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from runners import Faulted, Outcome, TrialSpec, outcome_from_json, outcome_to_json
from tuner.loop import Loop
from tuner.steps import Stop, Wait
from tuner.study_folder import PHASE
from tuner.trial import Launch

LOCAL = "local"
CONNECT_LIMIT_S = 10.0
INTERRUPTED = 130  # exit code
STOP_FILE = "stop-requested"
SCRATCH = ".ray"
ERROR = "error.txt"  # in a launch's folder: where our own code failed
OUTCOME, TOOK = "outcome", "took_s"


def run_launches(
    loop: Loop,
    spec_of: Callable[[Launch], TrialSpec],
    *,
    gpus: int,
    address: str,
    folder: Path,
    patience_s: float,
) -> None:
    """Run the loop's launches as Ray Tune trials until it says stop.

    A trial asks for one CPU and *gpus* GPUs in one bundle. *address* is "local" or an existing
    cluster's. Every node must see the study's *folder*: Ctrl-C or SIGTERM writes a file there, at
    which running trials stop their engines; they have *patience_s* for it.

    Raises:
        ClusterError: the cluster does not answer, or could never run a launch.
    """
    folder = folder.resolve()
    stop_file = folder / STOP_FILE
    with (
        _cluster(address, loop.parallel, gpus),
        _interruptible(
            loop, stop_file, patience_s
        ),  # after Ray has started, which sets handlers of its own
        _scratch(folder / SCRATCH) as scratch,
    ):
        tune.Tuner(
            tune.with_resources(launch_in_worker, tune.PlacementGroupFactory([_bundle(gpus)])),
            tune_config=tune.TuneConfig(
                search_alg=StudySearcher(loop, spec_of, stop_file),
                num_samples=-1,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(name="study", storage_path=str(scratch), verbose=0),
        ).fit()


class ClusterError(Exception):
    """The cluster cannot be reached, or can never run one launch; the message is for people."""


class StudySearcher(Searcher):  # type: ignore[misc]  # ray has no types
    """The loop behind Ray's interface; holds nothing that a restart would miss."""

    def __init__(
        self, loop: Loop, spec_of: Callable[[Launch], TrialSpec], stop_file: Path
    ) -> None:
        super().__init__(metric=TOOK, mode="min")
        self._loop = loop
        self._spec_of = spec_of
        self._stop_file = stop_file
        self._specs: dict[str, TrialSpec] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its searcher; the journal is our state

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next launch as a trial's config, None to wait, FINISHED to stop."""
        match self._loop.next_launch():
            case Launch() as launch:
                spec = self._specs[trial_id] = self._spec_of(launch)
                return {"spec": spec, "stop_file": str(self._stop_file)}
            case Wait():
                return None
            case Stop():
                return str(Searcher.FINISHED)

    def on_trial_complete(
        self,
        trial_id: str,
        result: dict[str, Any] | None = None,
        error: bool = False,  # noqa: FBT001, FBT002 -- Ray's signature
    ) -> None:
        """Tell the loop; a launch that was broken off by an interruption stays untold."""
        spec = self._specs.pop(trial_id)
        if error or not result or OUTCOME not in result:
            outcome, took_s = died(spec.folder), 0.0
        else:
            outcome = outcome_from_json(json.loads(result[OUTCOME]))
            took_s = float(result[TOOK])
        if not (self._loop.interrupted and isinstance(outcome, Faulted)):
            self._loop.ended(spec.number, outcome, took_s=took_s)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the journal is our state."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Refuse: a study is resumed from its journal."""
        raise RuntimeError(f"a study is resumed from its journal, not from {checkpoint_path}")


def launch_in_worker(config: Mapping[str, Any]) -> None:
    """Run in a Ray worker: try one candidate and report what came of it."""
    from runners.trial import run_trial

    began = time.monotonic()
    spec: TrialSpec = config["spec"]

    def show(doing: str) -> None:
        (spec.folder / PHASE).write_text(doing, encoding="utf-8")

    spec.folder.mkdir(parents=True, exist_ok=True)
    try:
        outcome = run_trial(spec, show, cancelled=Path(config["stop_file"]).exists)
    except Exception:  # Ray would throw the words away
        (spec.folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
        raise
    took_s = time.monotonic() - began
    (spec.folder / PHASE).unlink(missing_ok=True)
    tune.report({OUTCOME: json.dumps(outcome_to_json(outcome)), TOOK: took_s})


def died(folder: Path) -> Outcome:
    """Say what is known of a launch in *folder* that never reported."""
    path = folder / ERROR
    if not path.exists():
        return Faulted(reason="the Ray worker died while it ran the launch")
    last = path.read_text(encoding="utf-8").strip().splitlines()[-1]
    return Faulted(reason=f"the tuner itself failed ({last}); please report {path}")


def _bundle(gpus: int) -> dict[str, float]:
    return {"CPU": 1, "GPU": gpus} if gpus else {"CPU": 1}


@contextmanager
def _cluster(address: str, parallel: int, gpus: int) -> Iterator[None]:
    mine = {"num_cpus": parallel + 1, "include_dashboard": False} if address == LOCAL else {}
    for name in ("ray", "ray.tune", "ray.train"):
        logging.getLogger(name).setLevel(logging.ERROR)
    _check_answers(address)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, **mine)
    except (ConnectionError, RuntimeError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ClusterError(f"the Ray cluster {address!r} must be there, found: {why}") from error
    try:
        _check_gpus(gpus)
        yield
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return  # "local", "auto" and URLs are Ray's to look up
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_LIMIT_S).close()
    except OSError as error:
        raise ClusterError(
            f"cluster.address must be a Ray cluster's, found nobody at {address}: {error}"
        ) from error


def _check_gpus(needed: int) -> None:
    """Refuse what Ray would let wait for ever."""
    there = ray.cluster_resources().get("GPU", 0)
    if needed > there:
        raise ClusterError(
            f"a launch needs {needed} GPU(s), and Ray sees {there:g}: check the driver "
            "(nvidia-smi), or engine.flags for --tp-size, --pp-size, --dp-size and --device"
        )


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _interruptible(loop: Loop, stop_file: Path, patience_s: float) -> Iterator[None]:
    """Turn the first Ctrl-C or SIGTERM into a clean stop; a second Ctrl-C is Python's own.

    A signal may have ended Ray as well, which then never answers: after *patience_s* we end, and
    the guardian ends the engine.
    """
    stop_file.unlink(missing_ok=True)
    last_resort = threading.Timer(patience_s, os._exit, [INTERRUPTED])
    last_resort.daemon = True

    def stop(number: int, _: FrameType | None) -> None:
        if loop.interrupted and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not loop.interrupted:
            last_resort.start()
        loop.interrupted = True
        stop_file.touch()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        last_resort.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
        stop_file.unlink(missing_ok=True)
