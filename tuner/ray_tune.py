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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from runners import Faulted, Outcome, TrialSpec, guardian, outcome_from_json, outcome_to_json
from runners.cause import Cause
from runners.errors import MachineFaultError
from tuner import our_ray
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
STOP_SLACK_S = 10.0


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
        ClusterError: the cluster does not answer, could never run a launch, or has died.
        OSError: the journal cannot be written.
    """
    folder = folder.resolve()
    stop_file = folder / STOP_FILE
    searcher = StudySearcher(loop, spec_of, stop_file)
    with (
        _cluster(address, loop.parallel, gpus, folder),
        _interruptible(
            loop, stop_file, patience_s
        ),  # after Ray has started, which sets handlers of its own
        _scratch(folder / SCRATCH) as scratch,
    ):
        tune.Tuner(
            tune.with_resources(launch_in_worker, tune.PlacementGroupFactory([_bundle(gpus)])),
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                num_samples=-1,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(name="study", storage_path=str(scratch), verbose=0),
        ).fit()
    if searcher.trouble is not None:
        raise searcher.trouble


class ClusterError(Exception):
    """The cluster is not there, can never run one launch, or died; the message is for people."""


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
        self._unfinished: tuple[Path, ...] = ()  # launches whose worker died
        self.trouble: OSError | None = None  # Ray would put it in words of its own

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its searcher; the journal is our state

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next launch as a trial's config, None to wait, FINISHED to stop."""
        match self._next():
            case Launch() as launch:
                spec = self._specs[trial_id] = self._spec_of(launch)
                return {
                    "spec": spec,
                    "stop_file": str(self._stop_file),
                    "unfinished": self._unfinished,
                }
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
            (spec.folder / PHASE).unlink(missing_ok=True)  # the dead worker's last word
            outcome, took_s = died(spec.folder), 0.0
            self._unfinished = (*self._unfinished, spec.folder)
        else:
            outcome = outcome_from_json(json.loads(result[OUTCOME]))
            took_s = float(result[TOOK])
        if self._loop.interrupted and isinstance(outcome, Faulted):
            return
        try:
            self._loop.ended(spec.number, outcome, took_s=took_s)
        except OSError as trouble:
            self.trouble = trouble

    def _next(self) -> Launch | Wait | Stop:
        if self.trouble is None:
            try:
                return self._loop.next_launch()
            except OSError as trouble:
                self.trouble = trouble
        return Stop(str(self.trouble), fault=True)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the journal is our state."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Refuse: a study is resumed from its journal."""
        raise RuntimeError(f"a study is resumed from its journal, not from {checkpoint_path}")


def launch_in_worker(config: Mapping[str, Any]) -> None:
    """Run in a Ray worker: try one candidate and report what came of it."""
    began = time.monotonic()
    spec: TrialSpec = config["spec"]
    try:
        outcome = _try(spec, Path(config["stop_file"]), config.get("unfinished", ()))
    except Exception:  # Ray would throw the words away
        (spec.folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
        raise
    took_s = time.monotonic() - began
    (spec.folder / PHASE).unlink(missing_ok=True)
    tune.report({OUTCOME: json.dumps(outcome_to_json(outcome)), TOOK: took_s})


def _try(spec: TrialSpec, stop_file: Path, unfinished: Sequence[Path]) -> Outcome:
    from runners import janitor
    from runners.trial import run_trial

    def show(doing: str) -> None:
        (spec.folder / PHASE).write_text(doing, encoding="utf-8")

    patience_s = spec.engine.stop_grace_s + guardian.KILL_LIMIT_S + STOP_SLACK_S
    try:
        spec.folder.mkdir(parents=True, exist_ok=True)
        for folder in unfinished:
            janitor.await_end(spec.study_id, folder, patience_s=patience_s)
    except MachineFaultError as error:
        return Faulted(reason=str(error), lasting=error.lasting, cause=error.cause)
    except OSError as error:
        reason = f"the launch's folder cannot be made: {error}"
        return Faulted(reason=reason, lasting=True, cause=Cause.DISK)
    return run_trial(spec, show, cancelled=stop_file.exists)


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
def _cluster(address: str, parallel: int, gpus: int, folder: Path) -> Iterator[None]:
    mine = address == LOCAL
    options = {"num_cpus": parallel + 1, "include_dashboard": False} if mine else {}
    logging.getLogger("ray").setLevel(logging.ERROR)
    for name in ("ray.tune", "ray.train"):  # the tracebacks of what the journal says in a sentence
        logging.getLogger(name).setLevel(logging.CRITICAL)
    _check_answers(address)
    with our_ray.marked(folder) if mine else nullcontext():
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            why = " ".join(str(error).split())
            raise ClusterError(
                f"the Ray cluster {address!r} must be there, found: {why}"
            ) from error
        try:
            _check_gpus(gpus)
            with our_ray.death_noticed() if mine else nullcontext():
                yield
        except our_ray.RayDiedError as error:
            raise ClusterError(str(error)) from error
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
