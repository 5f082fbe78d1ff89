"""What we know so far and what to do next. Pure: same study in, same step out."""

import itertools
from dataclasses import dataclass, replace
from typing import Self

from runners import Faulted, Invalid, Measured, Rejected
from search_spaces import Candidate
from tuner.gate import Gate, gate_of
from tuner.plan import BASELINE, Plan
from tuner.ranking import rank
from tuner.stages import Decision, Stages
from tuner.steps import Step, Stop, Try, Wait
from tuner.trial import Launch, Trial

MOST_FAULTS_IN_ROW = 3
MOST_INVALID = 2  # measurements of one candidate that could not be trusted
MOST_LOST = 3  # launches of one candidate during which the tuner died
SAME_REJECTIONS = 3  # with one and the same reason and nothing measured: it is not the settings
MOST_USELESS = 8  # launches rejected or not to be trusted, with nothing measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """All launches of one tuning job, oldest first."""

    plan: Plan
    trials: tuple[Trial, ...] = ()
    pending: tuple[Launch, ...] = ()
    lost: tuple[Launch, ...] = ()  # the tuner died meanwhile
    dropped: tuple[Launch, ...] = ()  # broken off by the user
    exhausted: frozenset[str] = frozenset()  # stages in which nothing new is left to try
    earlier: int = 0  # trials of earlier runs: what made those stop may have been mended since

    def with_pending(self, launch: Launch) -> Self:
        """Return this study with one more launch on its way."""
        return replace(self, pending=(*self.pending, launch))

    def with_trial(self, trial: Trial) -> Self:
        """Return this study with one launch ended."""
        pending = tuple(p for p in self.pending if p.number != trial.number)
        return replace(self, pending=pending, trials=(*self.trials, trial))

    def with_lost(self) -> Self:
        """Return this study with all launches on their way given up: the tuner had died."""
        return replace(self, pending=(), lost=(*self.lost, *self.pending))

    def with_dropped(self) -> Self:
        """Return this study with all launches on their way broken off by the user."""
        return replace(self, pending=(), dropped=(*self.dropped, *self.pending))

    def with_exhausted(self, stage: str) -> Self:
        """Return this study knowing that *stage* has nothing new to try."""
        return replace(self, exhausted=self.exhausted | {stage})

    @property
    def next_number(self) -> int:
        """The number of the next launch."""
        return max((launch.number for launch in self._launches()), default=-1) + 1

    @property
    def spent_s(self) -> float:
        """Engine time of all launches that ended."""
        return sum(trial.took_s for trial in self.trials)

    @property
    def used(self) -> int:
        """Launches that count against the budget: settled or on their way."""
        return len(self._settled()) + len(self.pending)

    def best(self) -> Trial | None:
        """Return the feasible trial with the highest score; the first one on a tie."""
        feasible = [t for t in self.trials if t.feasible]
        return max(feasible, key=rank) if feasible else None

    def nearest(self) -> Trial | None:
        """Return the measured trial that breaks its limits least."""
        measured = [t for t in self.trials if t.score is not None]
        return max(measured, key=rank) if measured else None

    def next_step(self) -> Step:
        """Decide; the loop only obeys."""
        return (
            self._stop_for_cause()
            or self._again()
            or self._out_of_budget()
            or self._baseline()
            or self._next_in_stages()
        )

    def decisions(self) -> tuple[Decision, ...]:
        """Return what the stages settled that have had all their launches, in order."""
        return self._stages().decisions()

    def _out_of_budget(self) -> Step | None:
        if self.used >= self.plan.launches:
            return self._wait_or(Stop(f"all {self.plan.launches} launches are used"))
        if self.spent_s >= self.plan.budget_s:
            hours = self.plan.budget_s / 3600
            return self._wait_or(Stop(f"the time budget of {hours:g} hours is used"))
        return None

    def _baseline(self) -> Step | None:
        if all(launch.stage != BASELINE for launch in self._launches()):
            return Try(BASELINE, Candidate.of({}))
        return Wait() if any(p.stage == BASELINE for p in self.pending) else None

    def _next_in_stages(self) -> Step:
        return self._stages().next_step() or self._wait_or(Stop("every stage is done"))

    def _launches(self) -> tuple[Launch, ...]:
        ended = tuple(trial.launch for trial in self.trials)
        return (*ended, *self.pending, *self.lost, *self.dropped)

    def gate(self) -> Gate:
        """Return what keeps settings from a launch that could teach nothing."""
        launched = frozenset(launch.candidate.fingerprint for launch in self._launches())
        return gate_of(self.plan.space, launched, self.trials)

    def _stages(self) -> Stages:
        return Stages(
            plan=self.plan,
            trials=self.trials,
            pending=self.pending,
            launches=self._launches(),
            exhausted=self.exhausted,
            gate=self.gate(),
        )

    def _again(self) -> Try | None:
        """Return the launch to repeat: its machine failed, its number was no good, it was lost."""
        settled = self._settled()
        running = {p.candidate.fingerprint for p in self.pending}
        for launch in self._launches():
            if launch.candidate.fingerprint not in settled | running:
                return Try(launch.stage, launch.candidate)
        return None

    def _settled(self) -> set[str]:
        """Return the candidates that need no further launch."""
        settled = set()
        invalid: dict[str, int] = {}
        lost: dict[str, int] = {}
        for trial in self.trials:
            name = trial.candidate.fingerprint
            match trial.outcome:
                case Measured() | Rejected():
                    settled.add(name)
                case Invalid():
                    invalid[name] = invalid.get(name, 0) + 1
                case Faulted():
                    pass
        for launch in self.lost:
            name = launch.candidate.fingerprint
            lost[name] = lost.get(name, 0) + 1
        settled |= {name for name, times in invalid.items() if times >= MOST_INVALID}
        return settled | {name for name, times in lost.items() if times >= MOST_LOST}

    def _stop_for_cause(self) -> Stop | None:
        faults = list(itertools.takewhile(_is_fault, reversed(self._of_this_run())))
        if faults and isinstance(last := faults[0].outcome, Faulted):
            if last.lasting:
                return Stop(last.reason, fault=True)
            if len(faults) >= MOST_FAULTS_IN_ROW:
                return Stop(
                    f"{len(faults)} machine faults in a row; the last: {last.reason}", fault=True
                )
        return self._nothing_runs()

    def _nothing_runs(self) -> Stop | None:
        if any(isinstance(t.outcome, Measured) for t in self.trials):
            return None
        outcomes = [t.outcome for t in self._of_this_run()]
        refusals = [o.reason for o in outcomes if isinstance(o, Rejected)]
        useless = [o.reason for o in outcomes if isinstance(o, Rejected | Invalid)]
        if len(set(refusals)) == 1 and len(refusals) >= SAME_REJECTIONS:
            said = f"none of the first {len(refusals)} settings ran; the first: {refusals[0]}"
        elif len(useless) >= MOST_USELESS:
            said = f"none of {len(useless)} launches could be measured; the first: {useless[0]}"
        else:
            return None
        return Stop(said, fault=True)

    def _of_this_run(self) -> tuple[Trial, ...]:
        return self.trials[self.earlier :]

    def _wait_or(self, stop: Stop) -> Wait | Stop:
        return Wait() if self.pending else stop


def _is_fault(trial: Trial) -> bool:
    return isinstance(trial.outcome, Faulted)
