"""The loop: ask, launch, judge, remember. All decisions live in tuner.study.

Whoever runs the launches (Ray Tune does) calls `next_launch` until it says stop, and `ended` for
each launch that ended. The journal learns of everything before anyone else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from objectives import Objective
from runners import Measured, Outcome
from search_spaces import Candidate
from tuner.journal import Journal
from tuner.steps import Ask, Stop, Try, Wait
from tuner.study import Study
from tuner.trial import Launch, Trial


class Strategy(Protocol):
    """Thinks of settings to try."""

    def ask(self, study: Study, ask: Ask) -> Candidate | None:
        """Return a setting never launched before, None when there is none left."""


class Watcher(Protocol):
    """Looks on while a study runs."""

    def launched(self, launch: Launch, study: Study) -> None:
        """Learn that *launch* is on its way."""

    def ended(self, trial: Trial, study: Study) -> None:
        """Learn what came of a launch."""


@dataclass(kw_only=True)
class Loop:
    """Runs a study, one answer at a time."""

    study: Study
    strategy: Strategy
    objective: Objective
    journal: Journal
    now: Callable[[], str]  # the time of day, ISO 8601, UTC
    watchers: tuple[Watcher, ...] = ()
    parallel: int = 1
    interrupted: bool = False

    def next_launch(self) -> Launch | Wait | Stop:
        """Return what to launch next; it counts as launched from then on."""
        if self.interrupted:
            return Stop("interrupted")
        if len(self.study.pending) >= self.parallel:
            return Wait()
        while True:
            match self.study.next_step():
                case Try(stage=stage, candidate=candidate):
                    return self._launch(stage, candidate)
                case Ask() as ask:
                    asked = self.strategy.ask(self.study, ask)
                    if asked is not None:
                        return self._launch(ask.stage.name, asked)
                    self.study = self.study.with_exhausted(ask.stage.name)
                case Wait() | Stop() as step:
                    return step

    def ended(self, number: int, outcome: Outcome, *, took_s: float) -> None:
        """Remember what came of launch *number*."""
        launch = next(p for p in self.study.pending if p.number == number)
        self.journal.finished(number, outcome, took_s=took_s, at=self.now())
        score = (
            self.objective.judge(outcome.measurement) if isinstance(outcome, Measured) else None
        )
        trial = Trial(launch=launch, outcome=outcome, score=score, took_s=took_s)
        self.study = self.study.with_trial(trial)
        for watcher in self.watchers:
            watcher.ended(trial, self.study)

    def give_up_lost(self) -> None:
        """Count every launch on its way as lost: the tuner that ran it is dead."""
        for launch in self.study.pending:
            self.journal.lost(launch.number, at=self.now())
        self.study = self.study.with_lost()

    def drop_pending(self) -> None:
        """Remember that the user broke off every launch on its way."""
        for launch in self.study.pending:
            self.journal.dropped(launch.number, at=self.now())
        self.study = self.study.with_dropped()

    def _launch(self, stage: str, candidate: Candidate) -> Launch:
        launch = Launch(number=self.study.next_number, stage=stage, candidate=candidate)
        self.journal.launched(launch, at=self.now())
        self.study = self.study.with_pending(launch)
        for watcher in self.watchers:
            watcher.launched(launch, self.study)
        return launch
