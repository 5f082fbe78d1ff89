"""What the installed engine itself says about flags: its options, and what it makes of settings.

SGLang is asked in a process of its own Python; no engine starts, no port opens. Importing it takes
seconds, so its answers are kept in a file, until another SGLang is installed.
"""

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners import sglang_argument_probe as probe
from runners.environment import VARIABLE_FAMILIES, VARIABLES, interpreter_of
from runners.errors import RunnerError
from runners.flag_probe import Asked, InItsImage, OnThisMachine, Words, source
from runners.flag_words import Option, word_problems
from runners.sglang import base_command, command, shell_line
from runners.spec import EngineSpec
from search_spaces import Candidate

PORT = 30000  # a stand-in: nothing listens on it
TIMEOUT_S = 180.0
IDENTITY_TIMEOUT_S = 60.0  # a container takes its time to start
SGLANG = ("-m", "sglang.launch_server")
EMULATED = ("-m", "runners.emulated")
# Refusals that say something about the setting, whatever the machine does meanwhile.
LASTING = ("SystemExit", "AssertionError", "ValueError")
MOST_ANSWERS = 2000  # kept for one SGLang


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What an engine says to settings it would not start with."""

    kind: str  # the type of its error; SystemExit is its parser's
    text: str

    @property
    def by_parser(self) -> bool:
        """True when the words are no command line of this engine at all."""
        return self.kind == "SystemExit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The engine's own account of its flags, and of each argument list it was asked about."""

    engine: str  # name and version, for people
    place: str
    options: tuple[Option, ...]
    answers: Mapping[Words, Refusal | None]


@dataclass(frozen=True, slots=True)
class NotAsked:
    """The installed engine could not be asked, which says nothing about the flags."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotInstalled:
    """The interpreter that is to run the engine does not have it."""

    reason: str


def argument_list(engine: EngineSpec, candidate: Candidate) -> Words:
    """Return the flags that *engine* would be started with for *candidate*."""
    start = len(engine.command) or 3  # PYTHON -m MODULE
    return tuple(command(engine, candidate, PORT)[start:])


def ask(
    engine: EngineSpec,
    requests: Sequence[Words],
    *,
    environment: Mapping[str, str],
    cache: Path,
    timeout_s: float = TIMEOUT_S,
) -> Account | NotAsked | NotInstalled:
    """Ask the engine that *engine* starts for its options and about each of *requests*."""
    if engine.emulated:
        return _ask_emulated(engine, requests)
    words = base_command(engine)
    python = words[:1] if engine.docker is not None else interpreter_of(words[:1])
    if python is None or tuple(words[1:]) != SGLANG:
        return NotAsked(
            f"only 'PYTHON {' '.join(SGLANG)}' can be asked, engine.command is {shell_line(words)}"
        )
    asking = _asked(python[0], engine, environment)
    try:
        return _ask_sglang(asking, engine, requests, environment, (cache, timeout_s))
    except RunnerError as error:
        return NotAsked(str(error))


def _asked(python: str, engine: EngineSpec, environment: Mapping[str, str]) -> Asked:
    if engine.docker is not None:
        return InItsImage(engine)
    return OnThisMachine(python, environment)


def cache_folder(variables: Mapping[str, str] = os.environ) -> Path:
    """Return where the answers are kept."""
    return Path(variables.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sgl-tuner" / "flags"


def _ask_emulated(engine: EngineSpec, requests: Sequence[Words]) -> Account | NotAsked:
    from runners.emulated.settings import parser

    if engine.command and tuple(engine.command[1:]) != EMULATED:
        return NotAsked(
            f"engine.command is not 'PYTHON {' '.join(EMULATED)}': {shell_line(engine.command)}"
        )
    return Account(
        engine="the emulated engine",
        place="this program",
        options=tuple(Option.of(data) for data in probe.options(parser())),
        answers={words: _refusal(probe.answer(_resolve_emulated, words)) for words in requests},
    )


def _resolve_emulated(words: Sequence[str]) -> None:
    from runners.emulated.death import REFUSED_SETTING, EngineDeathError
    from runners.emulated.deployment import deploy
    from runners.emulated.settings import parse

    try:
        deploy(parse(words))
    except EngineDeathError as death:  # of memory: SGLang's resolution would not see that either
        if death.exit_code == REFUSED_SETTING:
            raise


def _ask_sglang(
    asking: Asked,
    engine: EngineSpec,
    requests: Sequence[Words],
    environment: Mapping[str, str],
    keep: tuple[Path, float],
) -> Account | NotInstalled:
    cache, timeout_s = keep
    identity = asking.ask("identity", (), IDENTITY_TIMEOUT_S)
    if identity["version"] is None:
        return NotInstalled(f"{asking.place} has no SGLang installed")
    path = cache / f"{_hash([asking.place, identity, source()])}.json"
    kept = _read(path)
    keys = {words: _hash([words, _circumstances(engine, environment)]) for words in requests}
    missing = [words for words in requests if keys[words] not in kept["answers"]]
    if any(_hopeless(kept, words) for words in missing):
        missing = []  # the table alone has what to say
    fresh: dict[str, Any] = {}
    if missing or not kept["options"]:
        found = asking.ask("answers", missing, timeout_s)
        fresh = dict(zip((keys[w] for w in missing), found["answers"], strict=True))
        kept = {"options": found["options"], "answers": {**kept["answers"], **fresh}}
        _write(path, kept)
    return Account(
        engine=f"SGLang {identity['version']}",
        place=asking.place,
        options=tuple(Option.of(data) for data in kept["options"]),
        answers={w: _refusal(kept["answers"][k]) for w, k in keys.items() if k in kept["answers"]},
    )


def _hopeless(kept: Mapping[str, Any], words: Words) -> bool:
    """Tell whether the table of options is enough to refuse *words*."""
    options = [Option.of(data) for data in kept["options"]]
    return bool(options and word_problems(options, words))


def _refusal(data: Mapping[str, str] | None) -> Refusal | None:
    return None if data is None else Refusal(kind=data["kind"], text=data["text"])


def _circumstances(engine: EngineSpec, environment: Mapping[str, str]) -> list[Any]:
    """Return what else than flags decides an answer."""
    config = (engine.model_folder or Path(engine.model)) / "config.json"
    moving = {
        name: value
        for name, value in environment.items()
        if name in VARIABLES or name in engine.env or name.startswith((*VARIABLE_FAMILIES, "HF_"))
    }
    age = config.stat().st_mtime_ns if config.is_file() else None
    return [platform.node(), age, sorted(moving.items())]


def _hash(data: object) -> str:
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # never asked, or half a file: asked again
        return {"options": [], "answers": {}}
    return {"options": kept["options"], "answers": kept["answers"]}


def _write(path: Path, kept: Mapping[str, Any]) -> None:
    lasting = {k: a for k, a in kept["answers"].items() if a is None or a["kind"] in LASTING}
    latest = dict(list(lasting.items())[-MOST_ANSWERS:])
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps({**kept, "answers": latest}), encoding="utf-8")
        draft.replace(path)
    except OSError:  # nowhere to keep it: asked again the next time
        draft.unlink(missing_ok=True)
