"""A study rebuilt from its file and its journal."""

from tuner.journal import History
from tuner.plan import Plan, StagePlan
from tuner.study import Study
from tuner.study_file import StudyFile


def plan_of(file: StudyFile) -> Plan:
    """Return what the study file lets the search spend, and on what."""
    stages = tuple(
        StagePlan(name=s.name, knobs=s.knobs, launches=s.launches, at=s.at) for s in file.stages()
    )
    return Plan(
        space=file.space(),
        stages=stages,
        launches=file.search.launches,
        budget_s=file.search.hours * 3600,
    )


def study_of(file: StudyFile, history: History) -> Study:
    """Return the study as its journal tells it."""
    return Study(
        plan=plan_of(file),
        trials=history.trials,
        pending=history.pending,
        lost=history.lost,
        dropped=history.dropped,
        earlier=history.earlier,
    )
