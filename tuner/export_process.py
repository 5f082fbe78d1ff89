"""The exporter at the driver's side: a process of its own, so that MLflow never stops tuning."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tuner.study import Study
from tuner.switches import set_switches
from tuner.trial import Launch, Trial

LOG = "mlflow.log"
# MLflow's own patience is minutes for each call; what fails is tried again at the next launch
PATIENCE = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "GIT_PYTHON_REFRESH": "quiet",
}


class ExportProcess:
    """Exports a study while it runs; entered, it has begun. Watches launches by itself."""

    def __init__(
        self,
        study_folder: Path,
        uri: str,
        experiment: str,
        *,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._folder = study_folder
        self._words = (str(study_folder), uri, experiment)
        self._environment = {**PATIENCE, **environment}
        set_switches(self._environment, local_ray=True)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with (self._folder / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tuner.mlflow_exporter", *self._words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the tuner, which then says when to end
            )
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish(timeout_s=0.0 if error is not None else 60.0)

    @property
    def pid(self) -> int | None:
        """The exporter's process, None before it began and after it ended."""
        return None if self._process is None else self._process.pid

    def launched(self, launch: Launch, study: Study) -> None:
        """Show the launch as running."""
        self.sync()

    def ended(self, trial: Trial, study: Study) -> None:
        """Show what came of the launch."""
        self.sync()

    def sync(self) -> None:
        """Ask for an export; returns at once, whatever state the exporter is in."""
        if self._process is None or self._process.stdin is None:
            return
        try:
            os.write(self._process.stdin.fileno(), b"sync\n")
        except (BlockingIOError, BrokenPipeError):
            return  # it has enough to do already, or it is gone, which `finish` will say

    def finish(self, timeout_s: float) -> str | None:
        """Wait for a last export; return in one sentence why not everything went in, if so."""
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            answer, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return (
                f"MLflow at {self._words[1]} did not take everything within {timeout_s:g} s; "
                f"'{self._again()}' tries again"
            )
        return self._trouble(answer, process.returncode)

    def _trouble(self, answer: bytes, code: int) -> str | None:
        lines = answer.decode("utf-8", "replace").splitlines()
        if code != 0 or not lines:
            return f"the exporter ended with exit code {code}, see {self._folder / LOG}"
        trouble: str | None = json.loads(lines[-1])["trouble"]
        return trouble

    def _again(self) -> str:
        return f"echo | python -m tuner.mlflow_exporter {' '.join(self._words)}"
