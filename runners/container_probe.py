"""Asks the Python inside an engine's image: its packages, and what it says about flags."""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runners import docker_containers as docker
from runners.container_plan import ContainerPlan, plan_for
from runners.docker_table import Mount
from runners.environment import LIST_PACKAGES
from runners.errors import MachineFaultError
from runners.sglang import base_command
from runners.spec import EngineSpec

INSIDE = "/sgl-tuner-probe"  # where the container sees our folder
PACKAGES_LIMIT_S = 120.0
PORT = 30000  # a stand-in: nothing listens on it


def packages_inside(engine: EngineSpec) -> dict[str, Any]:
    """Return image, Python and packages of *engine*'s container, or the reason why not."""
    with docker.connected(_plan(engine).host) as client:
        image = docker.image_here(client, _plan(engine).image)
        words = [base_command(engine)[0], "-c", f"import sys\nprint(sys.version)\n{LIST_PACKAGES}"]
        plan = replace(_plan(engine), command=tuple(words), gpus=())
        code, output = docker.run_once(client, plan, os.environ, PACKAGES_LIMIT_S)
    known = {} if image is None else {"id": image.id, "digests": list(image.digests)}
    image_facts = {"reference": _plan(engine).image, **known}
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if code != 0:
        last = lines[-1] if lines else "(it printed nothing)"
        reason = f"{words[0]} in the image did not list its packages: {last}"
        return {"image": image_facts, "python": None, "packages": None, "reason": reason}
    packages = sorted({line for line in lines if "==" in line}, key=str.lower)
    version = next((line for line in lines if "[" in line), None)
    return {"image": image_facts, "python": version, "packages": packages, "reason": None}


def probe_inside(
    engine: EngineSpec,
    source: str,
    what: str,
    requests: Sequence[Sequence[str]],
    timeout_s: float,
) -> dict[str, Any]:
    """Run the probe *source* in a container of *engine*'s image; return its answer.

    Raises:
        MachineFaultError: the container cannot be run, or gave no answer.
    """
    with tempfile.TemporaryDirectory(prefix="sgl-tuner-flags-") as folder:
        Path(folder, "asked").write_text(json.dumps(requests), encoding="utf-8")
        code = f"import sys\nsys.stdin = open({INSIDE + '/asked'!r})\n{source}"
        words = [base_command(engine)[0], "-c", code, what, f"{INSIDE}/answer"]
        plan = _plan(engine)
        mounts = (*plan.mounts, Mount(folder, INSIDE, read_only=False))
        asking = replace(plan, command=tuple(words), mounts=mounts)
        with docker.connected(plan.host) as client:
            _, output = docker.run_once(client, asking, os.environ, timeout_s)
        answer = Path(folder, "answer")
        if not answer.is_file():
            last = output.strip().rpartition("\n")[2] or "(none)"
            raise MachineFaultError(f"the image gave no answer; its last word: {last}")
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return found


def _plan(engine: EngineSpec) -> ContainerPlan:
    return plan_for(engine, (), PORT, environment=engine.env)
