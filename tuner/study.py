"""What we know so far and what to do next. Pure: same study in, same step out."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from runners import Faulted, Invalid, Measured, Rejected
from search_spaces import Candidate, Choice, Value
from tuner.plan import BASELINE, Plan, StagePlan
from tuner.ranking import rank, tied
from tuner.trial import Launch, Trial

MOST_FAULTS_IN_ROW = 3
MOST_INVALID = 2  # measurements of one candidate that could not be trusted
MOST_LOST = 3  # launches of one candidate during which the tuner died
SAME_REJECTIONS = 3  # with one and the same reason and nothing measured: it is not the settings
MOST_USELESS = 8  # launches rejected or not to be trusted, with nothing measured


@dataclass(frozen=True, slots=True)
class Try:
    """Launch this candidate."""

    stage: str
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Ask:
    """Get a new candidate from the strategy: *base* with other values for the stage's knobs."""

    stage: StagePlan
    base: Candidate
    asked: int  # candidates this stage has had


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be decided before a running launch ends."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more to do. *fault* is true when the machine or the set-up is to blame."""

    reason: str
    fault: bool = False


Step = Try | Ask | Wait | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a stage settled: values for its knobs, and why in words."""

    stage: str
    values: Mapping[str, Value]
    because: str


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
        return tuple(decision for _, _, decision in self._walk() if decision is not None)

    def _out_of_budget(self) -> Step | None:
        if self.used >= self.plan.launches:
            return self._wait_or(Stop(f"all {self.plan.launches} launches are used"))
        if self.spent_s >= self.plan.budget_s:
            hours = self.plan.budget_s / 3600
            return self._wait_or(Stop(f"the time budget of {hours:g} hours is used"))
        return None

    def _baseline(self) -> Step | None:
        if not self._asked(BASELINE):
            return Try(BASELINE, Candidate.of({}))
        return Wait() if any(p.stage == BASELINE for p in self.pending) else None

    def _next_in_stages(self) -> Step:
        for stage, base, decision in self._walk():
            if decision is None:
                return self._next_in_stage(stage, base)
        return self._wait_or(Stop("every stage is done"))

    def _next_in_stage(self, stage: StagePlan, base: Candidate) -> Step:
        if self._asked_all(stage, base):
            return Wait()
        if self._fits(stage, base):
            return Try(stage.name, next(self._untried(stage, base)))
        return Ask(stage, base.with_values(stage.at), len(self._asked(stage.name)))

    def _walk(self) -> Iterator[tuple[StagePlan, Candidate, Decision | None]]:
        """Yield each stage with the setting it starts from, up to the first undecided one."""
        base = Candidate.of({})
        for stage in self.plan.stages:
            waiting = any(p.stage == stage.name for p in self.pending)
            done = self._asked_all(stage, base) and not waiting
            decision = self._decide(stage, base) if done else None
            yield stage, base, decision
            if decision is None:
                return
            base = base.with_values(decision.values)

    def _fits(self, stage: StagePlan, base: Candidate) -> bool:
        """Say whether *stage* can try every combination of its values, in the order listed."""
        if not self._is_grid(stage):
            return False
        left = stage.launches - len(self._asked(stage.name))
        return sum(1 for _ in itertools.islice(self._untried(stage, base), left + 1)) <= left

    def _asked_all(self, stage: StagePlan, base: Candidate) -> bool:
        if stage.name in self.exhausted or len(self._asked(stage.name)) >= stage.launches:
            return True
        return self._is_grid(stage) and next(self._untried(stage, base), None) is None

    def _asked(self, stage: str) -> set[str]:
        return {ln.candidate.fingerprint for ln in self._launches() if ln.stage == stage}

    def _launches(self) -> tuple[Launch, ...]:
        ended = tuple(trial.launch for trial in self.trials)
        return (*ended, *self.pending, *self.lost, *self.dropped)

    def _is_grid(self, stage: StagePlan) -> bool:
        return all(isinstance(self.plan.space[name], Choice) for name in stage.knobs)

    def _untried(self, stage: StagePlan, base: Candidate) -> Iterator[Candidate]:
        known = self.known()
        values = [self.plan.space[name] for name in stage.knobs]
        choices = [v.values for v in values if isinstance(v, Choice)]
        for combination in itertools.product(*choices):
            mine = dict(zip(stage.knobs, combination, strict=True))
            candidate = base.with_values({**stage.at, **mine})
            if candidate.fingerprint in known or self.plan.space.problems(candidate):
                continue
            yield candidate

    def known(self) -> set[str]:
        """Return the fingerprints of all candidates that were ever launched."""
        return {launch.candidate.fingerprint for launch in self._launches()}

    def _decide(self, stage: StagePlan, base: Candidate) -> Decision:
        pool = [t for t in self.trials if t.score is not None and self._speaks_for(stage, base, t)]
        if not pool:
            return Decision(stage=stage.name, values={}, because="none of its settings ran")
        best = max(pool, key=rank)
        rivals = [t for t in pool if t is not best and tied(best, t)]
        if self._is_grid(stage) and rivals:
            chosen = min((best, *rivals), key=lambda t: self._listed(stage, t))
            because = f"a tie of {1 + len(rivals)} settings: the first of them listed is kept"
        else:
            chosen = best
            because = f"best of {len(pool)} settings" if len(pool) > 1 else "the only one that ran"
        values = {name: chosen.candidate[name] for name in stage.knobs if name in chosen.candidate}
        return Decision(stage=stage.name, values=values, because=because)

    def _speaks_for(self, stage: StagePlan, base: Candidate, trial: Trial) -> bool:
        if trial.stage == stage.name:
            return True
        if stage.at:
            return False
        others = {k: v for k, v in trial.candidate.items if k not in stage.knobs}
        return others == {k: v for k, v in base.items if k not in stage.knobs}

    def _listed(self, stage: StagePlan, trial: Trial) -> list[int]:
        places = []
        for name in stage.knobs:
            knob = self.plan.space[name]
            if isinstance(knob, Choice) and name in trial.candidate:
                places.append(knob.values.index(trial.candidate[name]))
        return places

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
