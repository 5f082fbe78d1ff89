"""What the stages of a search settled, and what the one under way tries next. Pure."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from search_spaces import Candidate, Choice, Value
from tuner.gate import Gate
from tuner.plan import Plan, StagePlan
from tuner.ranking import rank, tied
from tuner.steps import Ask, Try, Wait
from tuner.trial import Launch, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a stage settled: values for its knobs, and why in words."""

    stage: str
    values: Mapping[str, Value]
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages of a plan, in the light of all launches so far."""

    plan: Plan
    trials: tuple[Trial, ...]
    pending: tuple[Launch, ...]
    launches: tuple[Launch, ...]  # of every kind
    exhausted: frozenset[str]
    gate: Gate

    def next_step(self) -> Try | Ask | Wait | None:
        """Return the next step of the first undecided stage, None when all are decided."""
        for stage, base, decision in self._walk():
            if decision is None:
                return self._next_in(stage, base)
        return None

    def decisions(self) -> tuple[Decision, ...]:
        """Return what the stages settled that have had all their launches, in order."""
        return tuple(decision for _, _, decision in self._walk() if decision is not None)

    def _next_in(self, stage: StagePlan, base: Candidate) -> Try | Ask | Wait:
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

    def _asked_all(self, stage: StagePlan, base: Candidate) -> bool:
        if stage.name in self.exhausted or len(self._asked(stage.name)) >= stage.launches:
            return True
        if self._left_behind(stage):
            return True
        return self._is_grid(stage) and next(self._untried(stage, base), None) is None

    def _left_behind(self, stage: StagePlan) -> bool:
        """Say whether a later stage has begun: what is learnt since does not reopen this one."""
        names = [s.name for s in self.plan.stages]
        later = set(names[names.index(stage.name) + 1 :])
        return any(launch.stage in later for launch in self.launches)

    def _fits(self, stage: StagePlan, base: Candidate) -> bool:
        """Say whether *stage* can try every combination of its values, in the order listed."""
        if not self._is_grid(stage):
            return False
        left = stage.launches - len(self._asked(stage.name))
        return sum(1 for _ in itertools.islice(self._untried(stage, base), left + 1)) <= left

    def _asked(self, stage: str) -> set[str]:
        return {ln.candidate.fingerprint for ln in self.launches if ln.stage == stage}

    def _is_grid(self, stage: StagePlan) -> bool:
        return all(isinstance(self.plan.space[name], Choice) for name in stage.knobs)

    def _untried(self, stage: StagePlan, base: Candidate) -> Iterator[Candidate]:
        values = [self.plan.space[name] for name in stage.knobs]
        choices = [v.values for v in values if isinstance(v, Choice)]
        for combination in itertools.product(*choices):
            mine = dict(zip(stage.knobs, combination, strict=True))
            candidate = base.with_values({**stage.at, **mine})
            if self.gate.lets(candidate):
                yield candidate

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
