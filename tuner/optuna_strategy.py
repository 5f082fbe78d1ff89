"""New candidates from Optuna's samplers. The only file that imports optuna.

Nothing is kept between two asks: the Optuna study is built anew from ours each time, with a seed
that depends on how far we are, so that the same journal leads to the same suggestion.
"""

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from runners import Rejected
from search_spaces import Candidate, Choice, FloatRange, IntRange, Parameter, SearchSpace, Value
from search_spaces.parameter import DIGITS
from tuner.clamps import as_it_ran
from tuner.steps import Ask
from tuner.study import Study
from tuner.trial import Trial

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

BATCH = 32  # points drawn at once
RUNS = "runs"  # the constraint that a crash breaks
MARGIN_CLIP = (-1.0, 3.0)  # relative margins beyond these say no more
MOST_DRAWS = 64  # of a sampler
MOST_POINTS = 512  # of the even spread: they cost little, and what runs may be a small corner
DIGITS_SHOWN = 3  # of a knob without a step: more would be noise on a command line


class OptunaStrategy:
    """Constrained Bayesian optimisation behind one verb: limits go in as signed margins.

    The first third of a stage (at least *coarse_least* launches) covers the space evenly, by a
    scrambled Halton sequence; then the sampler refines. `tpe` is constrained multivariate TPE,
    `gp` a Gaussian process with constrained expected improvement (needs torch).
    """

    def __init__(self, *, sampler: str, seed: int, coarse_least: int = 4) -> None:
        self._sampler = sampler
        self._seed = seed
        self._coarse_least = coarse_least

    def ask(self, study: Study, ask: Ask) -> Candidate | None:
        """Return a setting worth a launch, None when there is none left to find."""
        gate = study.gate()
        for values in self._draws(study, ask):
            candidate = ask.base.with_values(values)
            if gate.lets(candidate):
                return candidate
        return None

    def _draws(self, study: Study, ask: Ask) -> Iterator[dict[str, Value]]:
        space = study.plan.space
        spread = _spread(space, ask.stage.knobs, self._seed)
        coarse = max(self._coarse_least, ask.stage.launches // 3)
        if ask.asked < coarse:
            yield from itertools.islice(spread, MOST_POINTS)
        yield from self._sampled(study, ask)
        yield from itertools.islice(spread, MOST_POINTS)

    def _sampled(self, study: Study, ask: Ask) -> Iterator[dict[str, Value]]:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        distributions = {n: _distribution(study.plan.space[n]) for n in ask.stage.knobs}
        past = optuna.create_study(
            direction="maximize", sampler=self._make_sampler(seed=self._seed + study.used)
        )
        for trial in _told(study, ask, distributions):
            past.add_trial(trial)
        for _ in range(MOST_DRAWS):
            asked = past.ask(distributions)
            yield {n: _readable(study.plan.space[n], v) for n, v in asked.params.items()}
            past.tell(asked, state=optuna.trial.TrialState.FAIL)

    def _make_sampler(self, *, seed: int) -> "optuna.samplers.BaseSampler":
        import optuna

        if self._sampler == "gp":
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=1)
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=1)


def _told(
    study: Study, ask: Ask, distributions: "dict[str, BaseDistribution]"
) -> "Iterator[optuna.trial.FrozenTrial]":
    """Yield what is known about settings that differ from the base in the stage's knobs only."""
    from optuna.trial import TrialState, create_trial

    def others(candidate: Candidate) -> dict[str, Value]:
        return {k: v for k, v in candidate.items if k not in ask.stage.knobs}

    def here(candidate: Candidate) -> dict[str, Any] | None:
        """Return the stage's knobs of *candidate*, None when it lies elsewhere."""
        mine = {k: v for k, v in candidate.items if k in ask.stage.knobs}
        fits = len(mine) == len(distributions) and others(candidate) == others(ask.base)
        return mine if fits and not study.plan.space.problems(candidate) else None

    knobs = {name: study.plan.space[name] for name in ask.stage.knobs}
    worst = min((t.score.value for t in study.trials if t.score is not None), default=0.0)
    limits = sorted({m.limit.metric for t in study.trials if t.score for m in t.score.margins})
    for trial in study.trials:
        if here(trial.candidate) is None or (margins := _margins(trial, limits)) is None:
            continue  # elsewhere, or a machine fault, which teaches nothing
        yield create_trial(
            params=as_it_ran(trial, knobs),
            distributions=distributions,
            value=worst if trial.score is None else trial.score.value,
            constraints=margins,
        )
    for launch in study.pending:
        if (params := here(launch.candidate)) is not None:
            yield create_trial(
                state=TrialState.RUNNING, params=params, distributions=distributions
            )


def _margins(trial: Trial, limits: list[str]) -> dict[str, float] | None:
    """Return every constraint in one fixed order: GPSampler tells them apart by position."""
    low, high = MARGIN_CLIP
    if isinstance(trial.outcome, Rejected):
        return {RUNS: 1.0, **dict.fromkeys(limits, 1.0)}
    if trial.score is None:
        return None
    kept = {m.limit.metric: min(max(m.relative, low), high) for m in trial.score.margins}
    return {RUNS: -1.0, **{name: kept[name] for name in limits}}


def _distribution(parameter: Parameter) -> "BaseDistribution":
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    match parameter:
        case Choice(values=values):
            return CategoricalDistribution(values)
        case IntRange(low=low, top=top, step=step, log=log):
            return IntDistribution(low, top, step=step, log=log)
        case FloatRange(low=low, top=top, step=step, log=log):
            return FloatDistribution(low, top, step=step, log=log)


def _spread(space: SearchSpace, names: tuple[str, ...], seed: int) -> Iterator[dict[str, Value]]:
    """Yield settings that cover the knobs evenly, for ever."""
    from scipy.stats import qmc

    halton = qmc.Halton(d=len(names), scramble=True, seed=seed)
    while True:
        for point in halton.random(BATCH):
            yield {n: _at(space[n], float(u)) for n, u in zip(names, point, strict=True)}


def _at(parameter: Parameter, share: float) -> Value:
    """Return the value that lies at *share* (0 to 1) of a knob's values."""
    match parameter:
        case Choice(values=values):
            return values[min(int(share * len(values)), len(values) - 1)]
        case IntRange(low=low, top=top, step=step):
            steps = round((_between(parameter, share) - low) / step)
            return min(low + steps * step, top)
        case FloatRange():
            return _readable(parameter, _between(parameter, share))


def _between(parameter: IntRange | FloatRange, share: float) -> float:
    low, high = parameter.low, parameter.high
    if parameter.log:
        return float(low * (high / low) ** share)
    return float(low + (high - low) * share)


def _readable(parameter: Parameter, value: Value) -> Value:
    """Leave out the digits that say nothing; a knob with steps stays on them."""
    if not isinstance(parameter, FloatRange):
        return value
    low, top, step, short = parameter.low, parameter.top, parameter.step, float(value)
    if step is not None:
        short = round(low + round((short - low) / step) * step, DIGITS)
    elif parameter.log:
        short = float(f"{short:.{DIGITS_SHOWN}g}")
    elif top > low:
        short = round(short, DIGITS_SHOWN - 1 - math.floor(math.log10(top - low)))
    return min(max(short, low), top)
