"""A study as its folder tells it: what was asked for, what came of it, and on what it ran."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from objectives import Limit, ThroughputUnderLimits
from tuner.bad_input import BadInputError
from tuner.journal import History, read_journal, read_opened
from tuner.rebuild import study_of
from tuner.report.latencies import Latencies, read_latencies
from tuner.study import Study
from tuner.study_file import StudyFile
from tuner.study_folder import StudyFolder
from tuner.trial import Launch, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """A study read back. Any file of a launch may be missing."""

    folder: StudyFolder
    file: StudyFile
    history: History
    objective: ThroughputUnderLimits
    environment: Mapping[str, Any]  # empty when no snapshot was written

    @property
    def name(self) -> str:
        """The study's name."""
        return self.file.study.name

    @property
    def emulated(self) -> bool:
        """True when no figure of this study is a measurement of real hardware."""
        return self.file.engine.emulated

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that every setting had to keep."""
        return self.objective.limits

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The launches that ended, by number."""
        return tuple(sorted(self.history.trials, key=lambda trial: trial.number))

    @property
    def broken_off(self) -> tuple[Launch, ...]:
        """The launches that nobody will finish: the tuner died, or its user stopped it."""
        return (*self.history.lost, *self.history.dropped)

    def study(self) -> Study:
        """Return the study as the loop would know it."""
        return study_of(self.file, self.history)

    def launches(self) -> Iterator[tuple[Launch, Trial | None]]:
        """Yield every launch by number, with what came of it if it ended."""
        ended = {trial.number: trial for trial in self.history.trials}
        known = {n: trial.launch for n, trial in ended.items()}
        known |= {launch.number: launch for launch in (*self.broken_off, *self.history.pending)}
        for number in sorted(known):
            yield known[number], ended.get(number)

    def command(self, number: int) -> str | None:
        """Return the command line that started launch *number*, None when none was written."""
        path = self.folder.launch(number) / "launch.txt"
        return path.read_text(encoding="utf-8").strip() or None if path.exists() else None

    def latencies(self, number: int) -> Latencies | None:
        """Return the latencies of launch *number*, None when it left no records of a success."""
        return read_latencies(self.folder.launch(number), speed=self.file.engine.speed)


def read_study(root: Path) -> StudyRecord:
    """Read the study in the folder *root*; the journal's own copy of the study file counts.

    Raises:
        BadInputError: there is no study in this folder.
        JournalError: the journal is not one of ours.
    """
    folder = StudyFolder(root)
    opened = read_opened(folder.journal)
    if opened is None:
        raise BadInputError(f"{root}: must hold a study's journal.jsonl, found none")
    file = StudyFile.model_validate_json(json.dumps(opened.spec))
    objective = file.objective.objective()
    return StudyRecord(
        folder=folder,
        file=file,
        history=read_journal(folder.journal, objective),
        objective=objective,
        environment=_environment(folder.environment),
    )


def _environment(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # a crash cut it in half
        return {}
    return found if isinstance(found, dict) else {}
