"""What a launch leaves in its folder: the line that repeats it, and what came of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from runners import sglang
from runners.redaction import redacted
from runners.trial_spec import TrialSpec


def write_launch(spec: TrialSpec, command: Sequence[str], env: Mapping[str, str]) -> None:
    """Write launch.json, and launch.txt with the line to paste into a shell."""
    line = sglang.shell_assignments(spec.engine) + sglang.shell_line(command)
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


def write_json(path: Path, data: Any) -> None:
    """Write *data* so that people can read it."""
    path.write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
