"""What a study ran on: versions, machine, GPUs and the variables that move performance."""

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runners.nvml_gpu import read_gpus
from runners.redaction import redacted

PACKAGE = "sgl-tuner"
PYTHONS = ("python", "pypy")
FREEZE_TIMEOUT_S = 60
VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS", "LD_PRELOAD")
VARIABLE_FAMILIES = ("NCCL_", "SGLANG_", "SGL_", "TORCH_", "TRITON_", "PYTORCH_")
# what of a GPU stays as it is while the machine is left alone
STEADY_GPU = ("name", "driver", "cuda_driver", "memory_total_mib", "power_limit_w")

LIST_PACKAGES = """
import importlib.metadata as m
for d in m.distributions():
    print(f"{d.metadata['Name']}=={d.version}")
"""


def snapshot(
    engine_python: Sequence[str] | None,
    *,
    repository: Path | None,
    variables: Mapping[str, str] = os.environ,
    image: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Look at this machine and return what moves performance, as plain data.

    *engine_python* is the command that runs the engine's Python, None when there is no such
    engine; *image* is what is known of an engine in a container instead; *repository* is the
    checkout the tuner runs from, if it does.
    """
    return {
        "taken_at": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "tuner": {
            "version": _own_version(),
            "commit": None if repository is None else commit(repository),
            **packages([sys.executable]),
        },
        "engine": image if engine_python is None else packages(engine_python),
        "machine": _machine(),
        "container": container_hints(),
        "gpus": read_gpus(),
        "variables": selected_variables(variables),
    }


def packages(python: Sequence[str]) -> dict[str, Any]:
    """Return the packages that the interpreter behind *python* sees, or the reason why not."""
    interpreter = interpreter_of(python)
    if interpreter is None:
        reason = f"{' '.join(python)!r} is not a Python interpreter"
        return {"python": None, "packages": None, "reason": reason}
    version = _output_of([*interpreter, "-c", "import sys; print(sys.version)"])
    frozen = _output_of([*interpreter, "-m", "pip", "--disable-pip-version-check", "freeze"])
    if frozen is None:  # an interpreter without pip
        frozen = _output_of([*interpreter, "-c", LIST_PACKAGES])
    if version is None or frozen is None:
        reason = f"{' '.join(interpreter)!r} did not start or did not list its packages"
        return {"python": version, "packages": None, "reason": reason}
    found = sorted({line.strip() for line in frozen.splitlines() if line.strip()}, key=str.lower)
    return {"python": version, "packages": found, "reason": None}


def interpreter_of(command: Sequence[str]) -> list[str] | None:
    """Return the Python interpreter that *command* runs, looking through a script's first line."""
    if not command:
        return None
    path = shutil.which(command[0])
    if path is None:
        return None
    if Path(path).name.startswith(PYTHONS):
        return [path]
    with Path(path).open("rb") as script:
        first = script.readline(500).decode("utf-8", "replace")
    words = first[2:].split() if first.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = words[1:]
    named = bool(words) and Path(words[0]).name.startswith(PYTHONS)
    return interpreter_of(words[:1]) if named else None


def commit(repository: Path) -> str | None:
    """Return the checkout's commit, marked when files differ from it; None outside of git."""
    head = _output_of(["git", "-C", str(repository), "rev-parse", "HEAD"])
    if head is None:
        return None
    changed = _output_of(["git", "-C", str(repository), "status", "--porcelain", "-uno"])
    return f"{head} (with local changes)" if changed else head


def selected_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that move performance; the values of secrets are hidden."""
    moving = {
        name: value
        for name, value in sorted(variables.items())
        if name in VARIABLES or name.startswith(VARIABLE_FAMILIES)
    }
    return redacted(moving)


def container_hints() -> list[str]:
    """Say what speaks for running inside a container; empty when nothing does."""
    hints = [str(p) for p in map(Path, ("/.dockerenv", "/run/.containerenv")) if p.exists()]
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        hints.append("KUBERNETES_SERVICE_HOST is set")
    quota = _first_line(Path("/sys/fs/cgroup/cpu.max"))
    if quota is not None and not quota.startswith("max"):
        hints.append(f"CPU quota {quota}")
    return hints


def as_text(taken: Mapping[str, Any]) -> str:
    """Write *taken* for people, one fact a line."""
    return "".join(f"{name}: {value}\n" for name, value in _facts(taken, ""))


def fingerprint(taken: Mapping[str, Any]) -> str:
    """Return a short hash of what moves performance; temperatures and times are not in it."""
    steady = json.dumps(performance_facts(taken), sort_keys=True)
    return hashlib.sha256(steady.encode()).hexdigest()[:12]


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Name what differs between two snapshots and may move performance."""
    before, after = performance_facts(a), performance_facts(b)
    return [
        f"{name}: {_shown(before.get(name))} -> {_shown(after.get(name))}"
        for name in sorted({**before, **after})
        if before.get(name) != after.get(name)
    ]


def performance_facts(taken: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of a snapshot that can move performance, flat."""
    tuner, engine = taken.get("tuner") or {}, taken.get("engine") or {}
    facts = {"tuner": tuner.get("version"), "engine Python": engine.get("python")}
    facts["engine image"] = (engine.get("image") or {}).get("id")
    facts |= {f"machine {name}": value for name, value in (taken.get("machine") or {}).items()}
    facts |= {f"variable {name}": value for name, value in (taken.get("variables") or {}).items()}
    for package in engine.get("packages") or ():
        name, _, version = package.partition("==")
        facts[f"engine package {name}"] = version or package
    for gpu in taken.get("gpus") or ():
        facts |= {f"GPU {gpu['index']} {name}": gpu.get(name) for name in STEADY_GPU}
    return {name: str(value) for name, value in facts.items() if value is not None}


def _shown(value: str | None) -> str:
    return "(none)" if value is None else value


def _facts(value: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _facts(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for index, inner in enumerate(value):
            yield from _facts(inner, f"{name}[{index}]")
    elif isinstance(value, list):
        yield name, "".join(f"\n    {inner}" for inner in value) if value else "(none)"
    else:
        yield name, "(none)" if value is None else value


def _machine() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cpu_governor": _first_line(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "memory_gib": _memory_gib(),
    }


def _cpu_model() -> str | None:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or None)


def _memory_gib() -> float | None:
    line = _first_line(Path("/proc/meminfo"))  # MemTotal: 12345 kB
    return None if line is None else round(int(line.split()[1]) / 1024**2, 1)


def _first_line(path: Path) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:  # this machine does not tell
        return None
    return lines[0].strip() if lines else None


def _own_version() -> str | None:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:  # run from a checkout, never installed
        return None


def _output_of(command: Sequence[str]) -> str | None:
    """Return what *command* prints, None when it cannot run, fails or takes too long."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FREEZE_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
