"""A study goes on only as it began; what can be made again is made again."""

from pathlib import Path

import pytest

from objectives import ThroughputUnderLimits
from tests.tuner_process import write_study
from tuner.bad_input import BadInputError
from tuner.journal import Opened, read_journal
from tuner.opening import open_study
from tuner.study_file import load_study_file
from tuner.study_folder import StudyFolder

DAMAGE = {
    b"garbage\n": "found no JSON in line 2",
    b"\xff\xfe\n": "found no JSON in line 2",
    b"5\n": "found no event in line 2",
    b'{"event": "finished", "number": 99}\n': "found a line that needs 99",
    b'{"event": "sung"}\n': "a newer tuner, for its event sung",
}


def begun(folder: Path) -> tuple[StudyFolder, Opened]:
    path = write_study(folder)
    study = StudyFolder(folder / "s")
    study.root.mkdir(exist_ok=True)
    return study, open_study(
        load_study_file(path), path, study, at="2026-01-01", allow_different_env=False
    )


def test_lost_requests_are_made_again(tmp_path: Path) -> None:
    """The study file fixes every prompt: a deleted workload comes back the same."""
    study, first = begun(tmp_path)
    before = study.workload.read_bytes()
    study.workload.unlink()

    assert begun(tmp_path)[1] == first
    assert study.workload.read_bytes() == before


def test_changed_requests_are_refused_before_anything_starts(tmp_path: Path) -> None:
    """Launches that were sent different requests do not compare."""
    study, _ = begun(tmp_path)
    study.workload.write_text("{}\n")

    with pytest.raises(BadInputError, match="is sent the same requests"):
        begun(tmp_path)


def test_an_environment_that_cannot_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    """Nobody can tell whether it is the same; the user may say that it is."""
    study, _ = begun(tmp_path)
    study.environment.write_text("garbage")

    with pytest.raises(BadInputError, match="go on with --allow-different-env"):
        begun(tmp_path)


@pytest.mark.parametrize("line", DAMAGE)
def test_a_damaged_journal_gets_one_sentence(tmp_path: Path, line: bytes) -> None:
    """Whatever is wrong with it, it is bad input that says what was found, where."""
    study, _ = begun(tmp_path)
    with study.journal.open("ab") as journal:
        journal.write(line)

    with pytest.raises(BadInputError, match=DAMAGE[line]) as caught:
        read_journal(
            study.journal, ThroughputUnderLimits(maximize="output_tokens_per_s", limits=())
        )

    assert str(study.journal) in str(caught.value)
