"""How SGLang, or our emulation of it, is started: the command line and the environment."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from runners.spec import DATA_PARALLEL, EngineSpec
from search_spaces import Candidate
from search_spaces import sglang as knobs
from search_spaces.flag_values import fixed_value

HOST = "127.0.0.1"
# What we set for every launch, and a user's flags therefore may not.
OUR_FLAGS = ("--model-path", "--model", "--host", "--port", "--api-key")
INTERNAL_PORT = "--nccl-port"
NO_TELEMETRY = {"DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def command(
    engine: EngineSpec, candidate: Candidate, port: int, internal_port: int | None = None
) -> list[str]:
    """Return the words that start *engine* with the settings of *candidate* on *port*.

    *internal_port* is where its workers meet each other; None: the engine draws one.
    """
    return [
        *base_command(engine),
        *("--model-path", engine.model, "--host", bind_address(engine), "--port", str(port)),
        *(() if "--enable-metrics" in engine.flags else ("--enable-metrics",)),
        *_internal(engine, internal_port),
        *engine.flags,
        *knobs.flags(candidate),  # last, so that a knob wins over a fixed flag
    ]


def _internal(engine: EngineSpec, port: int | None) -> tuple[str, ...]:
    # The replicas of a data-parallel engine draw ports of their own, and would all take this one.
    replicas = any(fixed_value(engine.flags, flag) not in {None, "1"} for flag in DATA_PARALLEL)
    fixed = (INTERNAL_PORT, "--dist-init-addr")
    chosen = any(word.partition("=")[0] in fixed for word in engine.flags)
    if port is None or engine.emulated or replicas or chosen:
        return ()
    return (INTERNAL_PORT, str(port))


def bind_address(engine: EngineSpec) -> str:
    """Return the address to listen on: loopback; all of its own inside a container's network.

    Such a container's port is published on this machine's loopback interface only.
    """
    own_network = engine.docker is not None and not engine.docker.on_host_network
    return "0.0.0.0" if own_network else HOST  # noqa: S104


def base_command(engine: EngineSpec) -> tuple[str, ...]:
    """Return the words before the flags that every engine takes."""
    if not engine.emulated:
        return engine.command or ("python3", "-m", "sglang.launch_server")
    python = sys.executable if engine.docker is None else "python3"
    words = engine.command or (python, "-m", "runners.emulated")
    emulation = ("--emulated-hardware", str(engine.hardware), "--emulated-speed")
    return (*words, *emulation, f"{engine.speed:g}")


def own_command(engine: EngineSpec) -> tuple[str, ...]:
    """Return the command whose Python holds the engine's packages; empty: ours, or an image's."""
    if engine.docker is not None:
        return ()
    return engine.command if engine.emulated else base_command(engine)


def reserved_flags(engine: EngineSpec) -> list[str]:
    """Return the fixed flags of *engine* that are ours to set."""
    return [word for word in engine.flags if word.partition("=")[0] in OUR_FLAGS]


def environment(
    engine: EngineSpec, names: Sequence[str], outer: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the engine's whole environment: of *outer* only what is named.

    A worker's own variables must not leak: Ray sets OMP_NUM_THREADS and many more.
    """
    kept = {name: outer[name] for name in (*names, "CUDA_VISIBLE_DEVICES") if name in outer}
    return {**NO_TELEMETRY, **kept, **engine.env}


def shell_line(words: Sequence[str]) -> str:
    """Return *words* as a line to paste into a shell."""
    return shlex.join(words)


def shell_assignments(engine: EngineSpec) -> str:
    """Return what must stand before the launch line in a shell, with its trailing space."""
    return "".join(f"{name}={shlex.quote(value)} " for name, value in engine.env.items())
