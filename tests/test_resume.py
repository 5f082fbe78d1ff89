"""A study goes on from any point, on any machine that was mended: nothing lost, nothing twice."""

import errno
import itertools
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from objectives import ThroughputUnderLimits
from runners import listener
from search_spaces import Candidate
from tests import study_factory
from tests.tuner_process import (
    assert_nothing_left,
    events,
    shared_memory,
    start,
    tuner,
    wait_until,
    write_faulty_study,
)
from tuner.journal import Closed, Journal, read_journal
from tuner.loop import Loop
from tuner.machine_trouble import MachineTroubleError, disk_trouble
from tuner.optuna_strategy import OptunaStrategy
from tuner.rebuild import study_of
from tuner.report.summary import is_finished, verdict_of
from tuner.steps import Stop
from tuner.study_file import StudyFile
from tuner.study_folder import StudyFolder
from tuner.trial import Launch

OBJECTIVE = ThroughputUnderLimits(maximize="output_tokens_per_s", limits=())
MIB = 2**20


# --- every step boundary ------------------------------------------------------------------------


def study_file() -> StudyFile:
    """Return a study of 9 launches with every stage."""
    plain = study_factory.spec("resumed", emulated=True)
    plain["engine"] = {"kind": "emulated", "model": "Llama-3.1-8B", "hardware": "A100-80G"}
    plain["search"] |= {"launches": 9}
    return StudyFile.model_validate_json(json.dumps(plain))


def run_on(path: Path) -> None:
    """Run the study of the journal at *path* to its end, with made-up measurements."""
    file = study_file()
    history = read_journal(path, OBJECTIVE)
    ticks = itertools.count()
    with Journal(path) as journal:
        loop = Loop(
            study=study_of(file, history),
            strategy=OptunaStrategy(sampler=file.search.sampler, seed=file.search.seed),
            objective=OBJECTIVE,
            journal=journal,
            now=lambda: f"2026-01-01T00:00:{next(ticks) % 60:02d}+00:00",
        )
        loop.give_up_lost()
        while isinstance(launch := loop.next_launch(), Launch):
            made_up = study_factory.measured(launch.candidate.values(), launch.number)
            loop.ended(launch.number, made_up, took_s=1.0)
        assert isinstance(launch, Stop)
        journal.closed(Closed(at=loop.now(), verdict="found", reason=launch.reason))


def whole_journal(folder: Path) -> list[bytes]:
    """Return the lines of a study that nothing disturbed."""
    root = study_factory.write_study(folder / "whole", [], closed=False)
    run_on(root / "journal.jsonl")
    return (root / "journal.jsonl").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("half", [b"", b'{"event": "finished", "at": "2026-01-'], ids=["", "half"])
def test_a_study_goes_on_from_every_line_of_its_journal(tmp_path: Path, half: bytes) -> None:
    """Whichever line was the last, half a line after it or not: all is kept, nothing is twice."""
    lines = whole_journal(tmp_path)
    assert len(lines) >= 18
    for kept in range(1, len(lines) + 1):
        path = tmp_path / f"{kept}.jsonl"
        path.write_bytes(b"".join(lines[:kept]) + half)

        run_on(path)

        assert path.read_bytes().startswith(b"".join(lines[:kept]))
        history = read_journal(path, OBJECTIVE)
        settings = [trial.candidate.fingerprint for trial in history.trials]
        assert len(settings) == len(set(settings)) == 9
        assert len(history.lost) == (b'"launched"' in lines[kept - 1])
        assert history.pending == ()
        assert is_finished(history)


def test_a_clock_that_was_set_changes_nothing(tmp_path: Path) -> None:
    """Times of day only label: a study whose clock ran back is as finished, and as long."""
    lines = [json.loads(line) for line in whole_journal(tmp_path)]
    hours = itertools.cycle([30, 3, 17])
    for line in lines:
        line["at"] = f"2026-01-{next(hours):02d}T00:00:00.000+00:00"
    path = tmp_path / "whole" / "journal.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    history = read_journal(path, OBJECTIVE)
    assert is_finished(history)
    study = study_of(study_file(), history)
    assert study.spent_s == 9.0
    assert isinstance(study.next_step(), Stop)
    assert verdict_of(study, history) == "found"


# --- a disk that takes no more ------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """Give out *folder* as a disk of its own; skip where we may not."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _free(disk: Path) -> int:
    there = os.statvfs(disk)
    return there.f_bavail * there.f_frsize


def fill(disk: Path, *, leave: int = 0) -> Path:
    """Fill *disk* but for *leave* bytes; return the file to be removed for room."""
    filler = disk / "filler"
    with filler.open("wb") as out:
        while (room := _free(disk) - leave) > 0:
            try:
                os.posix_fallocate(out.fileno(), out.seek(0, os.SEEK_END), room)
            except OSError as error:  # the study took some of it meanwhile
                assert error.errno == errno.ENOSPC  # noqa: PT017
    return filler


def append_for_ever(journal: Journal, folder: Path) -> None:
    """Append until the disk is full."""
    with disk_trouble(folder):
        for number in itertools.count():
            journal.lost(number, at="2026-01-01")


def test_a_line_that_does_not_fit_leaves_nothing_of_itself(tmp_path: Path) -> None:
    """The journal ends with its last whole line, and takes the next once there is room."""
    with small_disk(tmp_path / "disk", 1) as disk:
        path = disk / "journal.jsonl"
        launch = Launch(number=0, stage="baseline", candidate=Candidate.of({}))
        with Journal(path) as journal:
            journal.launched(launch, at="2026-01-01")
            before = path.read_bytes()
            filler = fill(disk)
            with pytest.raises(MachineTroubleError, match="No space left on device"):
                append_for_ever(journal, disk)
            lines = path.read_bytes()
            assert lines.startswith(before)
            assert lines.endswith(b"\n")
            filler.unlink()
            journal.lost(7, at="2026-01-02")
        assert path.read_bytes().startswith(lines)
        assert json.loads(path.read_bytes().splitlines()[-1])["number"] == 7


@pytest.mark.parametrize("command", ["check", "tune"])
def test_a_full_disk_is_said_before_anything_starts(tmp_path: Path, command: str) -> None:
    """One sentence with the room that is needed, and exit code 2."""
    write_faulty_study(tmp_path, port=listener.free_port())
    with small_disk(tmp_path / "studies", 2):
        ran = tuner(tmp_path, command, "study.toml")
        assert ran.code == 2
        assert "must have 16 MiB left, found 2 MiB" in ran.err.splitlines()[-1]
        assert list((tmp_path / "studies").iterdir()) == []


@pytest.mark.parametrize("command", ["check", "tune"])
def test_a_read_only_folder_is_said_before_anything_starts(tmp_path: Path, command: str) -> None:
    """One sentence that names the folder, and exit code 2."""
    write_faulty_study(tmp_path, port=listener.free_port())
    with small_disk(tmp_path / "studies", 32) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        ran = tuner(tmp_path, command, "study.toml")
        assert ran.code == 2
        assert ran.err.splitlines()[-1] == (
            f"the study's folder must be writable, found {disk}, which is not"
        )


@pytest.mark.slow
@pytest.mark.parametrize("leave", [0, 12_000], ids=["no byte", "a few lines"])
def test_a_disk_that_fills_stops_the_study_and_it_goes_on(tmp_path: Path, leave: int) -> None:
    """Exit code 4 and one sentence; after making room the same command ends the study."""
    port, before = listener.free_port(), shared_memory()
    write_faulty_study(tmp_path, port=port, launches=3, rounds=16)
    with small_disk(tmp_path / "studies", 32) as disk:
        process = start(tmp_path, "tune", "study.toml")
        wait_until(lambda: len(events(tmp_path, "launched")) >= 2, what="launch 1 begins")
        filler = fill(disk, leave=leave)

        assert process.wait(timeout=90) == 4
        said = (tmp_path / "tuner.err").read_text()
        assert "Traceback" not in said
        filler.unlink()
        assert_nothing_left(tmp_path, port=port, shared_before=before)
        kept = events(tmp_path, "finished")
        assert kept
        ran = tuner(tmp_path, "tune", "study.toml")

        assert ran.code == 0, ran.err
        ended = events(tmp_path, "finished")
        assert ended[: len(kept)] == kept
        assert_nothing_left(tmp_path, port=port, shared_before=before)


# --- two drivers, and a vanished MLflow ---------------------------------------------------------


def test_a_held_lock_refuses_every_other_driver(tmp_path: Path) -> None:
    """The second is told which process works there, with exit code 2; it writes nothing."""
    write_faulty_study(tmp_path, port=listener.free_port())
    root = tmp_path / "studies" / "small"
    with StudyFolder(root).locked():
        ran = tuner(tmp_path, "tune", "study.toml")
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith(
        f"only one tuner may work on a study, and process {os.getpid()} works in"
    )
    assert [file.name for file in root.iterdir()] == ["lock"]


@contextmanager
def tracking_server(*, answers: bool) -> Iterator[int]:
    """Give out a port where an MLflow server refuses, or takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not answers:
            server.close()
            yield port
            return
        kept: list[socket.socket] = []
        taker = threading.Thread(target=_take_all, args=(server, kept), daemon=True)
        taker.start()
        yield port
        server.shutdown(socket.SHUT_RDWR)
        taker.join()
        for connection in kept:
            connection.close()


def _take_all(server: socket.socket, kept: list[socket.socket]) -> None:
    try:
        while True:
            kept.append(server.accept()[0])
    except OSError:
        return  # the test is over


@pytest.mark.slow
@pytest.mark.parametrize("answers", [False, True], ids=["refuses", "hangs"])
def test_a_vanished_mlflow_costs_the_study_nothing(tmp_path: Path, answers: bool) -> None:
    """Exit code and winner are as without; the end says that MLflow has not everything."""
    port, before = listener.free_port(), shared_memory()
    study = write_faulty_study(tmp_path, port=port, tracking=True)
    with tracking_server(answers=answers) as tracking:
        uri = f'uri = "http://127.0.0.1:{tracking}"\n'
        study.write_text(study.read_text() + uri)
        ran = tuner(tmp_path, "tune", "study.toml", "--json")

    assert ran.code == 0, ran.err
    answer = ran.json()
    assert answer["winner"] is not None
    (note,) = answer["notes"]
    assert note.startswith("not all is in MLflow yet, the same command tries again")
    assert "Traceback" not in ran.err
    assert_nothing_left(tmp_path, port=port, shared_before=before)
