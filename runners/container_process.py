"""An engine in a container of this machine's Docker Engine, as a launch sees it.

A keeper process stands for the container: it runs under a guardian like any engine, so that the
container goes whatever dies. A container whose keeper was shot is found by its label.
"""

import json
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runners import container_plan, docker_containers, listener, process_table
from runners.container_plan import ContainerPlan, plan_for
from runners.engine_process import EngineProcess, launch
from runners.errors import MachineFaultError
from runners.trial_spec import TrialSpec

PLAN, REPORT = "container.json", "container_report.json"
KEEPER = (sys.executable, "-m", "runners.container_keeper")
DOCKER_SLACK_S = 20.0  # beyond the engine's grace, for the Docker Engine to stop and remove


class ContainerProcess:
    """A container that was started: its processes, whether it still runs, and what it printed."""

    def __init__(self, keeper: EngineProcess, plan: ContainerPlan, report: Path) -> None:
        self._keeper = keeper
        self._plan = plan
        self._report = report

    def exit_code(self) -> int | None:
        """Return how the container ended (128 + the signal when killed), None while it runs."""
        return self._keeper.exit_code()

    def pids(self) -> list[int]:
        """Return the container's processes, as this machine numbers them."""
        main = self._told().get("pid", 0)
        return [*process_table.descendants(main), main] if main else []

    def check_port(self, port: int) -> None:
        """Check that it is this container that listens on *port*.

        A published port belongs to the Docker Engine, which gives it to one container only.

        Raises:
            MachineFaultError: nobody does, or somebody else.
        """
        if not self._plan.published:
            listener.assert_ours(port, self.pids())
        elif port != self._plan.port or not self._told():
            raise MachineFaultError(f"port {port} is not published by our container")

    def check_port_not_taken(self, port: int) -> None:
        """Check that nobody else listens on *port*.

        Raises:
            MachineFaultError: somebody does.
        """
        if not self._plan.published:
            listener.assert_not_taken(port, self.pids())

    def log_tail(self, lines: int = 200) -> str:
        """Return the last *lines* of what the engine printed; the ends of long ones are cut."""
        return self._keeper.log_tail(lines)

    def _told(self) -> dict[str, Any]:
        if not self._report.exists():
            return {}
        told: dict[str, Any] = json.loads(self._report.read_text(encoding="utf-8"))
        return told


@contextmanager
def launch_container(
    spec: TrialSpec, command: Sequence[str], port: int, *, env: Mapping[str, str], gpus: str | None
) -> Iterator[ContainerProcess]:
    """Run *command* in a container; leaving stops, removes it, and proves it gone.

    *env* is that of the keeper; *gpus* are those of this launch, as in CUDA_VISIBLE_DEVICES.

    Raises:
        MachineFaultError: it cannot be started, or cannot be removed.
    """
    launch_id = secrets.token_hex(8)
    plan = plan_for(
        spec.engine,
        command,
        port,
        environment=spec.engine.env,
        visible_gpus=gpus,
        name=f"sgl-tuner-{spec.study_id[:8]}-{spec.number:03d}-{launch_id[:6]}",
        labels={
            container_plan.STUDY_LABEL: spec.study_id,
            container_plan.LAUNCH_LABEL: launch_id,
            container_plan.NUMBER_LABEL: str(spec.number),
        },
    )
    path, report = spec.folder / PLAN, spec.folder / REPORT
    path.write_text(plan.dumps() + "\n", encoding="utf-8")
    report.unlink(missing_ok=True)
    try:
        with launch(
            [*KEEPER, str(path), str(report)],
            env=env,
            log_path=spec.folder / "engine.log",
            grace_s=spec.engine.stop_grace_s + DOCKER_SLACK_S,
            study_id=spec.study_id,
        ) as keeper:
            yield ContainerProcess(keeper, plan, report)
    finally:
        docker_containers.swept(plan.host, container_plan.LAUNCH_LABEL, launch_id)
