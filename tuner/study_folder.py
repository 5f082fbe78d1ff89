"""The folder of one study: where everything lies, and the lock that keeps two tuners apart."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tuner.bad_input import BadInputError
from tuner.trial import Launch

LEAST_FREE_MIB = 16
PHASE = "phase"  # the file in which a running launch says what it is doing


@dataclass(frozen=True, slots=True)
class StudyFolder:
    """Paths inside a study's folder."""

    root: Path

    @property
    def journal(self) -> Path:
        """The journal, the only truth."""
        return self.root / "journal.jsonl"

    @property
    def workload(self) -> Path:
        """The requests that every launch is sent, one a line."""
        return self.root / "workload.jsonl"

    @property
    def environment(self) -> Path:
        """What the study began in, as JSON."""
        return self.root / "environment.json"

    @property
    def environment_text(self) -> Path:
        """The same for people."""
        return self.root / "environment.txt"

    def launch(self, number: int) -> Path:
        """Return the folder of launch *number*."""
        return self.root / "launches" / f"{number:03d}"

    def phase(self, launch: Launch) -> str:
        """Return what a running launch says it is doing."""
        try:
            return (self.launch(launch.number) / PHASE).read_text(encoding="utf-8")
        except OSError:
            return "waiting for a worker"

    def forget_phase(self, launch: Launch) -> None:
        """Remove what a launch that died said it was doing."""
        (self.launch(launch.number) / PHASE).unlink(missing_ok=True)

    def copy_of(self, study_file: Path) -> Path:
        """Return where the study file is kept beside what came of it."""
        return self.root / f"study{study_file.suffix or '.toml'}"

    def problems(self) -> Iterator[str]:
        """Say in one sentence each why nothing could be written here."""
        there = next(
            folder for folder in (self.root, *self.root.absolute().parents) if folder.exists()
        )
        if not os.access(there, os.W_OK):
            yield f"the study's folder must be writable, found {there}, which is not"
            return
        free_mib = shutil.disk_usage(there).free // 2**20
        if free_mib < LEAST_FREE_MIB:
            yield (
                f"the disk of the study's folder must have {LEAST_FREE_MIB} MiB left, found "
                f"{free_mib} MiB at {there}"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other tuner off this study; the lock goes with the process.

        Raises:
            BadInputError: the folder cannot be written, or another tuner works in it.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BadInputError(
                f"the study's folder must be writable, found {self.root}: {error.strerror}"
            ) from error
        try:
            _take(lock, self.root)
            yield
        finally:
            os.close(lock)


def _take(lock: int, root: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        raise BadInputError(
            f"only one tuner may work on a study, and process {holder} works in {root}"
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)


def find_folder(study: Path) -> StudyFolder:
    """Return the folder that *study*, a study file or the folder itself, stands for.

    Raises:
        BadInputError: nothing was run there yet.
    """
    from tuner.study_file import load_study_file

    root = study if study.is_dir() else load_study_file(study).folder()
    folder = StudyFolder(root)
    if not folder.journal.exists():
        raise BadInputError(f"nothing was run yet: {folder.journal} does not exist")
    return folder
