"""Where the installed SGLang is asked about its flags: this machine's Python, or an image's."""

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from runners import sglang_argument_probe as probe
from runners.container_probe import probe_inside
from runners.errors import RunnerError
from runners.spec import EngineSpec

Words = tuple[str, ...]


class ProbeError(RunnerError):
    """The installed engine gave no answer."""


class Asked(Protocol):
    """A Python that may have SGLang."""

    place: str

    def ask(self, what: str, requests: Sequence[Words], timeout_s: float) -> dict[str, Any]:
        """Return the probe's answer.

        Raises:
            RunnerError: it gave none.
        """


class OnThisMachine:
    """The engine's Python on this machine."""

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        self.place = python
        self._environment = environment

    def ask(self, what: str, requests: Sequence[Words], timeout_s: float) -> dict[str, Any]:
        """Return the probe's answer."""
        return _run(self.place, what, requests, self._environment, timeout_s)


class InItsImage:
    """The engine's Python inside its image."""

    def __init__(self, engine: EngineSpec) -> None:
        self.place = "its image" if engine.docker is None else engine.docker.image
        self._engine = engine

    def ask(self, what: str, requests: Sequence[Words], timeout_s: float) -> dict[str, Any]:
        """Return the probe's answer."""
        return probe_inside(self._engine, source(), what, requests, timeout_s)


def _run(
    python: str,
    what: str,
    requests: Sequence[Words],
    environment: Mapping[str, str],
    timeout_s: float,
) -> dict[str, Any]:
    """Run the probe, as `-c` in an empty folder: no file beside it is taken for a module."""
    with tempfile.TemporaryDirectory(prefix="sgl-tuner-flags-") as folder:
        asked, answer, log = (Path(folder) / name for name in ("asked", "answer", "log"))
        asked.write_text(json.dumps(requests), encoding="utf-8")
        with asked.open("rb") as stdin, log.open("wb") as stderr:
            _wait(
                [python, "-c", source(), what, str(answer)],
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                timeout=timeout_s,
                env=dict(environment),
                cwd=folder,
            )
        if answer.is_file():
            found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
            return found
        last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        raise ProbeError(f"{python} gave no answer; its last word: {last or '(none)'}")


def _wait(words: Sequence[str], *, timeout: float, **how: Any) -> None:
    try:
        subprocess.run(words, timeout=timeout, check=False, **how)
    except subprocess.TimeoutExpired as error:
        raise ProbeError(f"{words[0]} did not answer within {timeout:g} s") from error
    except OSError as error:
        raise ProbeError(f"{words[0]} cannot be started: {error.strerror}") from error


def source() -> str:
    """Return the probe's own text."""
    return Path(probe.__file__).read_text(encoding="utf-8")
