"""What a launch leaves in its folder: the line that repeats it, and what came of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from runners import sglang
from runners.container_plan import plan_for
from runners.redaction import redacted
from runners.spec import EngineSpec
from runners.trial_spec import TrialSpec


def write_launch(
    spec: TrialSpec, command: Sequence[str], env: Mapping[str, str], line: str
) -> None:
    """Write launch.json, and launch.txt with the *line* to paste into a shell."""
    write_json(
        spec.folder / "launch.json",
        {
            "number": spec.number,
            "candidate": dict(spec.candidate),
            "command": list(command),
            "environment": redacted(env),
        },
    )
    (spec.folder / "launch.txt").write_text(line + "\n", encoding="utf-8")


def launch_line(engine: EngineSpec, command: Sequence[str], port: int) -> str:
    """Return the line that starts *command* as *engine* wants it, to paste into a shell."""
    if engine.docker is None:
        return sglang.shell_assignments(engine) + sglang.shell_line(command)
    plan = plan_for(engine, command, port, environment=engine.env)
    return sglang.shell_line(plan.shell_words())


def write_json(path: Path, data: Any) -> None:
    """Write *data* so that people can read it."""
    path.write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
