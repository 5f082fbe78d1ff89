"""Keeps one container: makes it, passes its output on, and takes it down when asked to stop.

Run by `python -m runners.container_keeper PLAN REPORT` under a guardian, as the process that
stands for the engine: it prints what the engine prints, ends with the engine's exit code, and a
SIGTERM, which the guardian sends when anything above it dies, stops and removes the container.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

from runners import docker_containers as docker
from runners.container_plan import ContainerPlan
from runners.container_verdicts import NO_MEMORY, RETRY, SAYS, STOP
from runners.errors import MachineFaultError

TROUBLE = 125  # exit code, as of docker's own command line
POLL_S = 0.1
OUTPUT_LIMIT_S = 5.0  # for the last words of a container that ended


def main(words: list[str]) -> int:
    """Keep the container that *words* name until it ends or we are told to stop."""
    plan_path, report_path = map(Path, words)
    plan = ContainerPlan.loads(plan_path.read_text(encoding="utf-8"))
    try:
        return Keeper(plan, report_path).keep()
    except MachineFaultError as error:
        say((STOP if error.lasting else RETRY) + str(error))
        return TROUBLE


class Keeper:
    """Whoever keeps the container."""

    def __init__(self, plan: ContainerPlan, report: Path) -> None:
        self._plan = plan
        self._report = report
        self._told_to_stop = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def keep(self) -> int:
        """Return the exit code of the engine; 128 + the signal for one that was killed."""
        with docker.connected(self._plan.host) as client:
            image = docker.ensured_image(client, self._plan.image, self._plan.pull, self._say)
            container = docker.created(client, self._plan, os.environ)
            try:
                return self._run(container, image)
            finally:
                docker.removed(container, self._plan.grace_s)

    def _run(self, container: Any, image: docker.Image) -> int:
        output = threading.Thread(target=_pass_on, args=[docker.output_of(container)], daemon=True)
        output.start()
        self._write(container, image, pid=docker.started(container))
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(docker.end_of, container)
            while not ended.done() and not self._told_to_stop:
                time.sleep(POLL_S)
            if self._told_to_stop:
                docker.removed(container, self._plan.grace_s)  # which ends the waiting, too
                return 128 + signal.SIGTERM
            end = ended.result()
        output.join(OUTPUT_LIMIT_S)
        if end.out_of_memory:
            say(f"{NO_MEMORY}{self._plan.memory or 'that of the machine'}")
        return end.exit_code

    def _write(self, container: Any, image: docker.Image, pid: int) -> None:
        known = {
            "container": container.id,
            "name": container.name,
            "image": {"reference": image.reference, "id": image.id, "digests": image.digests},
            "pid": pid,
        }
        draft = self._report.with_suffix(".part")
        draft.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        draft.replace(self._report)

    def _say(self, text: str) -> None:
        if self._told_to_stop:
            raise MachineFaultError("told to stop")
        say(text)

    def _stop(self, _: int, __: FrameType | None) -> None:
        self._told_to_stop = True


def say(text: str) -> None:
    """Write a line of our own into the engine's log."""
    sys.stdout.buffer.write(f"{SAYS}{text}\n".encode())
    sys.stdout.buffer.flush()


def _pass_on(output: Iterable[bytes]) -> None:
    for piece in output:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
