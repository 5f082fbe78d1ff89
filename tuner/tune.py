"""The main job: a study file goes in, the winner and the reasons come out.

Everything is resumed from the journal: run the same study again and it goes on where it was.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from runners import EngineSpec, TrialSpec
from tuner.bad_input import BadInputError
from tuner.journal import Closed, Journal, Opened, read_journal
from tuner.leftovers import clear_up
from tuner.loop import Loop, Watcher
from tuner.machine_trouble import MachineTroubleError, disk_trouble
from tuner.mlflow_pages import Pages, pages_of
from tuner.opening import open_study
from tuner.preflight import Findings, findings, resolved
from tuner.rebuild import study_of
from tuner.steps import Stop
from tuner.study import Study
from tuner.study_file import StudyFile
from tuner.study_folder import StudyFolder
from tuner.switches import set_switches
from tuner.trial import Launch

if TYPE_CHECKING:
    from tuner.export_process import ExportProcess

EXPORT_LIMIT_S = 60.0  # for what is left to send to MLflow when the tuning is done


class Verdict(Enum):
    """How a study ended; the value is the exit code of the command line."""

    FOUND = 0
    INFEASIBLE = 3
    FAULTED = 4
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What a run over a study came to."""

    verdict: Verdict
    reason: str
    study: Study
    folder: StudyFolder
    launches_page: str | None = None  # where MLflow compares the launches
    notes: tuple[str, ...] = ()  # what went wrong beside the tuning


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run over a study."""

    file: StudyFile
    file_path: Path
    folder: StudyFolder
    watchers: tuple[Watcher, ...] = ()
    allow_different_env: bool = False
    say: Callable[[str], None] = lambda _: None
    engine: EngineSpec | None = None  # as it is launched, when that is not as it is written


def check(file: StudyFile) -> Findings:
    """Refuse a study that cannot work; return what is worth knowing about one that can.

    Raises:
        BadInputError: one sentence for each thing that is wrong.
    """
    found = findings(file)
    if problems := (*found.problems, *StudyFolder(file.folder()).problems()):
        raise BadInputError("\n".join(problems))
    return found


def tune(job: Job) -> Ending:
    """Run a study to its end, or to an interruption.

    Raises:
        BadInputError: the study cannot begin or go on as asked.
        MachineTroubleError: the disk takes no more, or an earlier run left what cannot be ended.
    """
    found = check(job.file)
    for note in (f"flags: {found.flags_checked}", *found.notes):
        job.say(note)
    engine = _with_pinned_image(job)
    names = tuple(sorted(os.environ))  # before ours and Ray's join them: the engine gets these
    set_switches(os.environ, local_ray=job.file.cluster.address == "local")
    with job.folder.locked(), disk_trouble(job.folder.root):
        opened = open_study(
            job.file,
            job.file_path,
            job.folder,
            at=now(),
            allow_different_env=job.allow_different_env,
            engine=engine,
        )
        with Journal(job.folder.journal) as journal:
            return _run(replace(job, engine=engine), journal, opened, names)


def _with_pinned_image(job: Job) -> EngineSpec:
    engine = job.file.engine
    if engine.docker is None:
        return engine
    from runners.container_check import pinned
    from runners.errors import MachineFaultError

    try:
        return engine.model_copy(update={"docker": pinned(engine.docker, job.say)})
    except MachineFaultError as error:
        raise BadInputError(str(error)) from error


def _run(job: Job, journal: Journal, opened: Opened, names: tuple[str, ...]) -> Ending:
    from tuner.optuna_strategy import OptunaStrategy

    file, objective = job.file, job.file.objective.objective()
    history = read_journal(job.folder.journal, objective)
    with ExitStack() as stack:
        exporter = stack.enter_context(_exporter(job)) if file.tracking.enabled else None
        loop = Loop(
            study=study_of(file, history),
            strategy=OptunaStrategy(sampler=file.search.sampler, seed=file.search.seed),
            objective=objective,
            journal=journal,
            now=now,
            watchers=job.watchers if exporter is None else (*job.watchers, exporter),
            parallel=file.cluster.parallel,
        )
        _clear_up(job, opened)
        _give_up_lost(job, loop)
        stop = _launch_all(job, opened, loop, names)
        return _close(job, journal, loop, stop, exporter)


def _clear_up(job: Job, opened: Opened) -> None:
    from runners.errors import MachineFaultError

    try:
        clear_up(job.file.engine, opened.study_id, job.folder.root.resolve(), job.say)
    except MachineFaultError as error:
        raise MachineTroubleError(str(error)) from error


def _give_up_lost(job: Job, loop: Loop) -> None:
    """Count the launches that were on their way when their tuner or Ray died as lost."""
    for launch in loop.study.pending:
        job.folder.forget_phase(launch)
    loop.give_up_lost()


def _launch_all(job: Job, opened: Opened, loop: Loop, names: tuple[str, ...]) -> Stop:
    """Run launches until there is a reason to stop; return it."""
    if isinstance(step := loop.study.next_step(), Stop):
        return step
    from tuner.ray_tune import ClusterError, run_launches  # seconds to import

    engine = job.file.engine
    try:
        run_launches(
            loop,
            lambda launch: _spec(job, opened, launch, names),
            gpus=engine.gpus,
            address=job.file.cluster.address,
            folder=job.folder.root,
            patience_s=engine.stop_grace_s + 15,
        )
    except ClusterError as error:
        _give_up_lost(job, loop)
        return Stop(str(error), fault=True)
    return _stopped(loop)


def _exporter(job: Job) -> "ExportProcess":
    from tuner.export_process import ExportProcess

    experiment = job.file.tracking.experiment or job.file.study.name
    return ExportProcess(job.folder.root, job.file.tracking.uri, experiment)


def _spec(job: Job, opened: Opened, launch: Launch, names: tuple[str, ...]) -> TrialSpec:
    root = StudyFolder(job.folder.root.resolve())
    return TrialSpec(
        study_id=opened.study_id,
        number=launch.number,
        candidate=launch.candidate.values(),
        engine=resolved(job.engine or job.file.engine),
        workload=job.file.workload,
        workload_path=root.workload,
        workload_sha256=opened.workload_sha256,
        folder=root.launch(launch.number),
        environment_names=names,
    )


def _stopped(loop: Loop) -> Stop:
    step = loop.next_launch() if loop.interrupted else loop.study.next_step()
    return step if isinstance(step, Stop) else Stop("the cluster stopped early", fault=True)


def _close(
    job: Job, journal: Journal, loop: Loop, stop: Stop, exporter: "ExportProcess | None"
) -> Ending:
    from tuner.report import write_report

    loop.drop_pending()
    verdict = _verdict(loop, stop)
    journal.closed(Closed(at=now(), verdict=verdict.name.lower(), reason=stop.reason))
    write_report(job.folder.root)
    trouble = None if exporter is None else exporter.finish(timeout_s=EXPORT_LIMIT_S)
    notes = (
        ()
        if trouble is None
        else (f"not all is in MLflow yet, the same command tries again: {trouble}",)
    )
    return Ending(
        verdict=verdict,
        reason=stop.reason,
        study=loop.study,
        folder=job.folder,
        launches_page=_launches_page(job),
        notes=notes,
    )


def _launches_page(job: Job) -> str | None:
    """Say where MLflow compares the launches: an address, or the command that serves it."""
    uri, pages = job.file.tracking.uri, Pages.read(job.folder.root)
    if pages is None or not job.file.tracking.enabled:
        return None
    served = uri.startswith(("http://", "https://"))
    return pages.compare(pages_of(uri)) if served else f"tuner ui {job.file_path}"


def _verdict(loop: Loop, stop: Stop) -> Verdict:
    if loop.interrupted:
        return Verdict.INTERRUPTED
    if loop.study.best() is not None and not stop.fault:
        return Verdict.FOUND
    return Verdict.FAULTED if stop.fault else Verdict.INFEASIBLE


def now() -> str:
    """Return the time of day, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
