"""How a study begins, and what must be the same when it goes on."""

import json
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner import __version__
from tuner.bad_input import BadInputError
from tuner.journal import Journal, Opened, read_opened
from tuner.preflight import resolved
from tuner.study_file import StudyFile
from tuner.study_folder import StudyFolder

if TYPE_CHECKING:
    from runners import EngineSpec
    from runners.workload import PlannedRequest

# What may change between two runs over one study: how much is spent, and where it is shown.
MAY_CHANGE = ("search.launches", "search.hours", "search.stages", "tracking", "cluster", "study")


def open_study(
    file: StudyFile,
    file_path: Path,
    folder: StudyFolder,
    *,
    at: str,
    allow_different_env: bool,
    engine: "EngineSpec | None" = None,
) -> Opened:
    """Begin the study, or find it begun the same way.

    *engine* is what will be launched, when that is not the file's: an image goes by its digest,
    because its tag may move between our looking and its launch.

    Raises:
        BadInputError: what it is about has changed since it began.
    """
    opened = read_opened(folder.journal)
    if opened is None:
        return _begin(file, file_path, folder, at, engine or file.engine)
    _refuse_other_study(file, folder, opened)
    if not allow_different_env and folder.environment.exists():
        _refuse_other_environment(file, folder, engine or file.engine)
    _refuse_other_requests(file, folder, opened)
    return opened


def _begin(
    file: StudyFile, file_path: Path, folder: StudyFolder, at: str, engine: "EngineSpec"
) -> Opened:
    from runners.environment import as_text
    from runners.workload import prefix_sharing, write_plan

    requests = _requests(file)
    taken = _environment(file, engine)
    folder.environment.write_text(json.dumps(taken, indent=1, default=str))
    folder.environment_text.write_text(as_text(taken))
    copy = folder.copy_of(file_path)
    if not (copy.exists() and copy.samefile(file_path)):
        shutil.copyfile(file_path, copy)
    opened = Opened(
        study_id=uuid.uuid4().hex,
        at=at,
        spec=file.model_dump(mode="json"),
        workload_sha256=write_plan(folder.workload, requests),
        prefix_sharing=prefix_sharing(requests),
        tuner_version=__version__,
    )
    with Journal(folder.journal) as journal:
        journal.opened(opened)
    return opened


def _requests(file: StudyFile) -> "list[PlannedRequest]":
    from runners.workload import plan, vocabulary_of

    workload = file.workload
    known = workload.vocabulary or vocabulary_of(file.engine.model_folder)
    return plan(workload, known or 32000)


def _refuse_other_study(file: StudyFile, folder: StudyFolder, opened: Opened) -> None:
    before, after = _flat(opened.spec), _flat(file.model_dump(mode="json"))
    for key in sorted(before.keys() | after.keys()):
        if key.startswith(MAY_CHANGE) or before.get(key) == after.get(key):
            continue
        raise BadInputError(
            f"a study keeps its settings from beginning to end, found {key} changed from "
            f"{before.get(key)!r} to {after.get(key)!r}: give the new one another study.name, "
            f"or remove {folder.root}"
        )


def _refuse_other_environment(file: StudyFile, folder: StudyFolder, engine: "EngineSpec") -> None:
    from runners.environment import differences

    try:
        began_in = json.loads(folder.environment.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInputError(
            f"{folder.environment} must say what the study began in, found no JSON ({error}); "
            "go on with --allow-different-env if you are sure that it is the same"
        ) from error
    if found := differences(began_in, _environment(file, engine)):
        raise BadInputError(
            "trials of one study must have run in one environment, found differences since it "
            f"began: {'; '.join(found)}. Begin a new study, or go on with --allow-different-env"
        )


def _refuse_other_requests(file: StudyFile, folder: StudyFolder, opened: Opened) -> None:
    """Refuse changed requests; when the file is gone, make it again."""
    from runners.workload import sha256, write_plan

    path = folder.workload
    if not path.exists():
        write_plan(path, _requests(file))
    if (found := sha256(path)) != opened.workload_sha256:
        raise BadInputError(
            f"every launch of a study is sent the same requests: {path} must have SHA-256 "
            f"{opened.workload_sha256}, found {found}; remove the file and it is made again"
        )


def _environment(file: StudyFile, engine: "EngineSpec") -> dict[str, Any]:
    from runners.environment import interpreter_of, snapshot
    from runners.sglang import own_command

    image = None
    if file.engine.docker is not None:
        from runners.container_probe import packages_inside
        from runners.errors import MachineFaultError

        try:
            image = packages_inside(resolved(engine))
            image["image"]["reference"] = file.engine.docker.image
        except MachineFaultError as error:
            raise BadInputError(f"engine.docker: {error}") from error
    python = interpreter_of(own_command(resolved(file.engine)))
    return snapshot(python, repository=Path(__file__).parent, image=image)


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
