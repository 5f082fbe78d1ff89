"""Ends what a dead tuner left running on this machine: its Ray, its engines, its containers."""

from collections.abc import Callable
from pathlib import Path

from runners import EngineSpec


def clear_up(engine: EngineSpec, study_id: str, folder: Path, say: Callable[[str], None]) -> None:
    """Leave nothing of an earlier run of the study in *folder*; engines are stopped in order.

    Raises:
        MachineFaultError: something of it cannot be ended.
    """
    from runners import guardian, janitor
    from tuner import our_ray

    patience_s = engine.stop_grace_s + guardian.KILL_LIMIT_S
    ended = [*our_ray.sweep(folder), *janitor.sweep(study_id, patience_s=patience_s)]
    if ended:
        say(f"ended {len(ended)} processes that an earlier run of this study left behind")
    if engine.docker is not None:
        from runners.container_plan import STUDY_LABEL
        from runners.docker_containers import swept

        if names := swept(engine.docker.host, STUDY_LABEL, study_id):
            say(f"removed containers that an earlier run left behind: {', '.join(names)}")
