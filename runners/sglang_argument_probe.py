"""Asks the installed SGLang about its flags; runs inside the engine's own Python.

    PYTHON -c SOURCE identity FILE    which SGLang this is, without importing it
    PYTHON -c SOURCE answers FILE     its options, and its answer to each argument list on stdin

The answer goes to FILE as JSON. Nothing but the standard library and that SGLang is needed, no
port is opened and no engine started.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

NAME = "sglang"
DECIDING = ("version.py", "srt/server_args.py", "srt/arg_groups", "srt/arg_groups/fields")


def identity() -> dict[str, Any]:
    """Return SGLang's version and the age of what decides its flags; no version: not installed."""
    found = importlib.util.find_spec(NAME)
    if found is None:
        return {"version": None, "changed": []}
    try:
        version = importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError:  # a source tree on the path
        version = "of unknown version"
    roots = [Path(root) for root in found.submodule_search_locations or ()]
    places = [root / place for root in roots for place in DECIDING]
    places += [p for root in roots for p in root.parent.glob(f"{NAME}-*.dist-info")]
    changed = sorted([str(p), p.stat().st_mtime_ns] for p in places if p.exists())
    return {"version": version, "changed": changed}


def options(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Return every option of *parser*: its names, and what it takes."""
    return [
        {
            "names": list(action.option_strings),
            "values": _values(action),
            "type": getattr(action.type, "__name__", "str"),
            "choices": None if action.choices is None else [str(c) for c in action.choices],
        }
        for action in parser._actions  # noqa: SLF001 - argparse has no public list of them
        if action.option_strings
    ]


def _values(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "none"
    return "one" if action.nargs is None else "some"


def answer(
    resolve: Callable[[Sequence[str]], None], words: Sequence[str]
) -> dict[str, str] | None:
    """Return why *words* are refused: the kind of error and its text; None when they are not."""
    said = io.StringIO()
    before = dict(os.environ)
    try:
        with contextlib.redirect_stderr(said):
            resolve(words)
    except SystemExit:
        text = said.getvalue().rpartition("error: ")[2].strip()
        return {"kind": "SystemExit", "text": " ".join(text.split())}
    except Exception as error:  # noqa: BLE001 - whatever SGLang raises is its answer
        return {"kind": type(error).__name__, "text": " ".join(str(error).split())}
    finally:  # SGLang sets variables while it resolves, which would colour the next answer
        os.environ.clear()
        os.environ.update(before)
    return None


def answers(requests: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Ask the installed SGLang, as `sglang.launch_server` would before it starts anything."""
    server_args = importlib.import_module("sglang.srt.server_args")
    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)

    def resolve(words: Sequence[str]) -> None:
        found = server_args.prepare_server_args(list(words))
        for step in ("resolve_once", "check_server_args"):  # older versions resolve at once
            getattr(found, step, lambda: None)()

    return {"options": options(parser), "answers": [answer(resolve, words) for words in requests]}


def main(argv: Sequence[str]) -> None:
    """Answer what *argv* asks."""
    found = identity() if argv[0] == "identity" else answers(json.load(sys.stdin))
    Path(argv[1]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
