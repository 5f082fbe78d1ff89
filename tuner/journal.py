"""The only truth about a study: one JSON object a line, on disk before anyone else learns of it.

A line that a crash cut in half is not part of the journal; everything before it is.
"""

import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from objectives import Objective
from runners import Measured, Outcome, outcome_from_json, outcome_to_json
from search_spaces import Candidate
from tuner.bad_input import BadInputError
from tuner.trial import Launch, Trial

NOT_OPENED = "with 'opened' in its first line, found something else there"


class JournalError(BadInputError):
    """The journal on disk is not as the tuner wrote it."""

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(
            f"{path} must be as the tuner wrote it, {found}; bring the file back, or remove "
            f"{path.parent} to begin anew"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """How the study began."""

    study_id: str
    at: str
    spec: Mapping[str, Any]  # the study file as plain data
    workload_sha256: str
    prefix_sharing: float  # share of prompt tokens that an endless prefix cache would find
    tuner_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """How the study ended, the last time it ran."""

    at: str
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that a journal tells."""

    opened: Opened
    trials: tuple[Trial, ...]  # in the order in which they ended
    lost: tuple[Launch, ...]  # launched, and the tuner died before they ended
    dropped: tuple[Launch, ...]  # broken off by the user
    pending: tuple[Launch, ...]  # launched, and neither ended nor given up
    closed: Closed | None
    earlier: int = 0  # trials that ended before the study was last closed
    launched_at: Mapping[int, str] = field(default_factory=dict)  # by launch number


class Journal:
    """Appends to a study's journal; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: io.FileIO | None = None

    def __enter__(self) -> Self:
        _cut_half_line(self._path)
        self._file = io.FileIO(self._path, "a")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def opened(self, opened: Opened) -> None:
        """Remember how the study began."""
        self._append("opened", opened.at, _without_at(opened))

    def launched(self, launch: Launch, *, at: str) -> None:
        """Remember that *launch* is on its way."""
        self._append("launched", at, _launch_to_json(launch))

    def finished(self, number: int, outcome: Outcome, *, took_s: float, at: str) -> None:
        """Remember what came of launch *number*."""
        data = {"number": number, "took_s": took_s, "outcome": outcome_to_json(outcome)}
        self._append("finished", at, data)

    def lost(self, number: int, *, at: str) -> None:
        """Remember that launch *number* was given up because the tuner had died."""
        self._append("lost", at, {"number": number})

    def dropped(self, number: int, *, at: str) -> None:
        """Remember that the user broke off launch *number*."""
        self._append("dropped", at, {"number": number})

    def closed(self, closed: Closed) -> None:
        """Remember how the study ended."""
        self._append("closed", closed.at, _without_at(closed))

    def _append(self, event: str, at: str, data: Mapping[str, Any]) -> None:
        if self._file is None:
            raise RuntimeError("a journal must be entered before anything is appended")
        line = json.dumps({"event": event, "at": at, **data}, allow_nan=False)
        _write_all(self._file, line.encode() + b"\n")


def read_journal(path: Path, objective: Objective) -> History:
    """Read a study's past and judge it by *objective*.

    Raises:
        JournalError: the file is not a journal of ours.
    """
    events = list(_events(path))
    if not events or events[0].get("event") != "opened":
        raise JournalError(path, NOT_OPENED)
    try:
        return _history(events, objective)
    except KeyError as error:
        raise JournalError(path, f"found a line that needs {error}, which is not there") from error


def read_opened(path: Path) -> Opened | None:
    """Return how the study of this journal began, None when there is no journal yet."""
    first = next(_events(path), None) if path.exists() else None
    if first is None:
        return None
    if first.get("event") != "opened":
        raise JournalError(path, NOT_OPENED)
    return _opened(first)


def _history(events: list[dict[str, Any]], objective: Objective) -> History:
    launches: dict[int, Launch] = {}
    launched_at: dict[int, str] = {}
    trials: list[Trial] = []
    lost: list[Launch] = []
    dropped: list[Launch] = []
    closed, earlier = None, 0
    for event in events[1:]:
        match event["event"]:
            case "launched":
                launches[event["number"]] = _launch_from_json(event)
                launched_at[event["number"]] = event["at"]
            case "finished":
                launch = launches.pop(event["number"])
                trials.append(_trial(launch, launched_at[launch.number], event, objective))
            case "lost":
                lost.append(launches.pop(event["number"]))
            case "dropped":
                dropped.append(launches.pop(event["number"]))
            case "closed":
                closed = Closed(at=event["at"], verdict=event["verdict"], reason=event["reason"])
                earlier = len(trials)
            case other:
                raise KeyError(f"a newer tuner, for its event {other}")
    return History(
        opened=_opened(events[0]),
        trials=tuple(trials),
        lost=tuple(lost),
        dropped=tuple(dropped),
        pending=tuple(launches.values()),
        closed=closed,
        earlier=earlier,
        launched_at=launched_at,
    )


def _trial(launch: Launch, at: str, event: Mapping[str, Any], objective: Objective) -> Trial:
    outcome = outcome_from_json(event["outcome"])
    score = objective.judge(outcome.measurement) if isinstance(outcome, Measured) else None
    return Trial(
        launch=launch, outcome=outcome, score=score, took_s=event["took_s"], started_at=at
    )


def _events(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            return  # cut in half by a crash
        try:
            event = json.loads(line)
        except ValueError as error:
            raise JournalError(path, f"found no JSON in line {number} ({error})") from error
        if not isinstance(event, dict):
            raise JournalError(path, f"found no event in line {number}")
        yield event


def _cut_half_line(path: Path) -> None:
    if not path.exists():
        return
    whole = path.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):
        os.truncate(path, end)


def _write_all(file: io.FileIO, line: bytes) -> None:
    """Write a whole line to the disk, or leave nothing of it there."""
    before = file.seek(0, os.SEEK_END)
    try:
        left = memoryview(line)
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    except OSError:
        os.ftruncate(file.fileno(), before)
        raise


def _opened(event: Mapping[str, Any]) -> Opened:
    return Opened(**{k: v for k, v in event.items() if k != "event"})


def _without_at(value: Opened | Closed) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__ if name != "at"}


def _launch_to_json(launch: Launch) -> dict[str, Any]:
    return {
        "number": launch.number,
        "stage": launch.stage,
        "candidate": launch.candidate.values(),
        "fingerprint": launch.candidate.fingerprint,
    }


def _launch_from_json(event: Mapping[str, Any]) -> Launch:
    return Launch(
        number=event["number"],
        stage=event["stage"],
        candidate=Candidate.of(event["candidate"]),
    )
