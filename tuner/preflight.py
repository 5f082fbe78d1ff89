"""What can be known to be wrong before anything starts."""

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from runners import EngineSpec
from runners.sglang import reserved_flags
from tuner.study_file import StudyFile


def problems(file: StudyFile) -> Iterator[str]:
    """Say in one sentence each what would make every launch fail."""
    yield from _command_problems(file.engine)
    yield from (
        _emulation_problems(file.engine) if file.engine.emulated else _model_problems(file.engine)
    )
    if file.search.sampler == "gp" and find_spec("torch") is None:
        yield 'search.sampler = "gp" needs torch (pip install "sgl-tuner[gp]"), which is not here'


def resolved(engine: EngineSpec) -> EngineSpec:
    """Return *engine* with absolute paths: a launch runs in another working directory."""
    command = engine.command
    if command and "/" in command[0]:
        command = (str(Path(command[0]).expanduser().absolute()), *command[1:])
    model = Path(engine.model).expanduser()
    name = str(model.resolve()) if not engine.emulated and model.is_dir() else engine.model
    return engine.model_copy(update={"command": command, "model": name})


def _command_problems(engine: EngineSpec) -> Iterator[str]:
    if reserved := reserved_flags(engine):
        yield f"engine.flags must not set what the tuner sets itself, found {', '.join(reserved)}"
    if not engine.command:
        return
    first = str(Path(engine.command[0]).expanduser())
    if shutil.which(first) is None:
        yield f"engine.command must begin with a program that can be run, found {first!r}"


def _model_problems(engine: EngineSpec) -> Iterator[str]:
    model = Path(engine.model).expanduser()
    looks_like_path = engine.model.startswith(("/", "./", "../", "~")) or model.exists()
    if looks_like_path and not (model / "config.json").is_file():
        what = "has no config.json" if model.is_dir() else "is not a directory"
        yield f"engine.model must be a model's directory or a hub name; {engine.model} {what}"
    if not looks_like_path and os.environ.get("HF_HUB_OFFLINE") == "1":
        yield f"engine.model {engine.model!r} is a hub name, and HF_HUB_OFFLINE=1 forbids the hub"


def _emulation_problems(engine: EngineSpec) -> Iterator[str]:
    from runners.emulated.hardware import hardware_named
    from runners.emulated.models import model_named

    for look_up, name in ((hardware_named, engine.hardware or ""), (model_named, engine.model)):
        try:
            look_up(name)
        except ValueError as error:
            yield str(error)
