"""The last thing a person or a script reads of a run: verdict, winner, command, where to look."""

from collections.abc import Iterator
from typing import Any

from runners import Measured
from tuner.clamps import clamps
from tuner.progress import result
from tuner.report.as_json import without_infinity
from tuner.trial import Trial
from tuner.tune import Ending, Verdict

LAUNCH_GONE = "(the launch's files are gone; run the study under another name to get the line)"


def answer_json(ending: Ending) -> dict[str, Any]:
    """Return plain data for machines."""
    best = ending.study.best()
    return {
        "verdict": ending.verdict.name.lower(),
        "exit_code": ending.verdict.value,
        "reason": ending.reason,
        "winner": None if best is None else _trial(ending, best),
        "nearest": None
        if best is not None or (near := ending.study.nearest()) is None
        else _trial(ending, near),
        "launches": len(ending.study.trials),
        "folder": str(ending.folder.root),
        "report": str(ending.folder.root / "report.html"),
        "mlflow": ending.launches_page,
        "notes": list(ending.notes),
    }


def answer_text(ending: Ending) -> str:
    """Return the answer for people."""
    return "\n".join(_lines(ending))


def _lines(ending: Ending) -> Iterator[str]:
    best, nearest = ending.study.best(), ending.study.nearest()
    match ending.verdict:
        case Verdict.FOUND:
            yield f"found ({ending.reason})"
        case Verdict.INFEASIBLE:
            yield f"no setting keeps every limit ({ending.reason})"
        case Verdict.FAULTED:
            yield f"stopped: {ending.reason}"
        case Verdict.INTERRUPTED:
            yield "interrupted; run the same command again to go on"
    if best is not None:
        yield f"best setting: {best.candidate}"
        yield f"              {result(best)}"
        yield f"launch it:    {launch_command(ending, best) or LAUNCH_GONE}"
    elif nearest is not None:
        yield f"nearest:      {nearest.candidate}"
        yield f"              {result(nearest)}"
    yield f"report:       {ending.folder.root / 'report.html'}"
    if ending.launches_page is not None:
        yield f"MLflow:       {ending.launches_page}"
    yield from (f"note:         {note}" for note in ending.notes)


def launch_command(ending: Ending, trial: Trial) -> str | None:
    """Return the line that starts the engine as *trial* did; None when its files are gone."""
    path = ending.folder.launch(trial.number) / "launch.txt"
    return None if not path.exists() else path.read_text(encoding="utf-8").strip()


def _trial(ending: Ending, trial: Trial) -> dict[str, Any]:
    metrics = trial.outcome.measurement.metrics() if isinstance(trial.outcome, Measured) else {}
    return {
        "launch": trial.number,
        "stage": trial.stage,
        "setting": trial.candidate.values(),
        "clamped": [str(clamp) for clamp in clamps(trial)],
        "metrics": without_infinity(metrics),
        "limits": [str(margin) for margin in trial.score.margins] if trial.score else [],
        "command": launch_command(ending, trial),
    }
