"""Walls: where settings stop running, learnt from the rejections that say which way to turn.

Turned so that more means harsher, the knobs of a wall span a space in which memory adds up: KV
pool, activations of a chunk, and what each request takes. So what is at least as harsh as a mix of
hits (a weighted mean) fails too, and what is nowhere harsher than a setting that ran runs too;
what lies between is open. A mix of settings that ran is not known to run: a chunk of 16384 may
have run only because few requests were there to fill it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runners import Measured, Rejected
from runners.cause import Direction, Directions
from search_spaces import Candidate, Choice, SearchSpace, Value
from tuner.clamps import is_number
from tuner.trial import Trial

MOST_HITS = 2  # of one wall; from then on only what is known to run is tried
ROUNDING = 1e-9

Point = tuple[float, ...]  # one figure a knob: 0 is the mild end of its range, 1 the harsh end
Setting = Mapping[str, Value]
Hit = tuple[Setting, Directions]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One knob of a wall."""

    knob: str
    mild: float
    harsh: float

    @property
    def way(self) -> Direction:
        """Where settings that run are to be found."""
        return "lower" if self.mild <= self.harsh else "raise"

    def place(self, value: float) -> float:
        """Return how harsh *value* is."""
        return (value - self.mild) / ((self.harsh - self.mild) or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """Rejections that want the same knobs turned the same way."""

    axes: tuple[Axis, ...]
    hits: tuple[Point, ...]
    ran: tuple[Point, ...]  # those that no hit contradicts
    facing: Point  # how far another wall reaches from the mild end, 0 where there is none

    def forbids(self, point: Point) -> bool:
        """Say whether a launch at *point* would be wasted, or would risk too many hits.

        After the first hit the search ventures no more than half way from what ran to what did
        not: most of what runs is known by the time of the second, after which it ventures nothing.
        """
        if reached(point, self.hits):
            return True
        if not self.ran:
            return not self._far(point)
        if any(_nowhere_above(point, ran) for ran in self.ran):
            return False
        return len(self.hits) >= MOST_HITS or not self._near(point)

    def _near(self, point: Point) -> bool:
        """Say whether *point* is at most half way from a setting that ran to a hit."""
        return any(
            _nowhere_above(point, _half_way(ran, hit)) for ran in self.ran for hit in self.hits
        )

    def _far(self, point: Point) -> bool:
        """Say whether *point* keeps to the far half of what the hits left of each knob's range.

        Asked only while nothing ever ran. Every further hit then halves the range left, so that
        settings that run are found after a few more hits if the knobs can reach any; that there
        are no more than two hits is not promised. Between two walls that face each other the
        middle half is kept to.
        """
        for place, column, start in zip(
            point, zip(*self.hits, strict=True), self.facing, strict=True
        ):
            nearest = min((hit for hit in column if hit > start), default=None)
            share = 3 / 4 if start else 1 / 2
            if nearest is not None and place > start + (nearest - start) * share + ROUNDING:
                return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """Every wall that the trials of a study hit."""

    walls: tuple[Wall, ...] = ()
    defaults: Setting  # what the engine takes for a knob that is not set

    def forbid(self, candidate: Candidate) -> bool:
        """Say whether a launch of *candidate* would be wasted on a wall.

        A setting that leaves a wall's knob to the engine, with no word of what it takes for it,
        cannot be judged and is let through.
        """
        values = {**self.defaults, **candidate.values()}
        for wall in self.walls:
            point = _point(wall.axes, values)
            if point is not None and wall.forbids(point):
                return True
        return False


def walls_of(space: SearchSpace, trials: Sequence[Trial]) -> Walls:
    """Return the walls that *trials* hit; each is named by the most knobs any of its hits names.

    An engine that died while it captured its graphs asks for less memory; one that died under
    load asks for that, or a smaller chunk. The second wall holds the hits of the first as well.
    """
    hits = [hit for trial in trials if (hit := _hit(space, trial)) is not None]
    turns = {frozenset(named.items()) for _, named in hits}
    widest = sorted(sorted(t) for t in turns if not any(t < other for other in turns))
    ran = _measured(trials)
    return Walls(
        walls=tuple(
            _wall(tuple(_axis(space, *turn) for turn in wall), hits, ran) for wall in widest
        ),
        defaults=_defaults(trials),
    )


def _hit(space: SearchSpace, trial: Trial) -> Hit | None:
    """Return the setting and the way out of it, by the knobs that can be turned."""
    if not isinstance(trial.outcome, Rejected):
        return None
    values = trial.candidate.values()
    ways = {n: way for n, way in trial.outcome.directions.items() if n in space.names}
    known = all(is_number(values.get(name)) for name in ways)
    return (values, ways) if ways and known else None


def _axis(space: SearchSpace, knob: str, way: Direction) -> Axis:
    parameter = space[knob]
    if isinstance(parameter, Choice):
        numbers = [value for value in parameter.values if is_number(value)]
        low, high = min(numbers), max(numbers)
    else:
        low, high = parameter.low, parameter.high
    mild, harsh = (low, high) if way == "lower" else (high, low)
    return Axis(knob=knob, mild=mild, harsh=harsh)


def _wall(axes: tuple[Axis, ...], hits: Sequence[Hit], measured: Sequence[Setting]) -> Wall:
    ways = {axis.knob: axis.way for axis in axes}
    mine = tuple(
        _hit_at(axes, values, named) for values, named in hits if named.items() <= ways.items()
    )
    points = (_point(axes, values) for values in measured)
    ran = [p for p in points if p is not None and not reached(p, mine)]
    return Wall(
        axes=axes, hits=mine, ran=_harshest(ran), facing=tuple(_facing(a, hits) for a in axes)
    )


def _hit_at(axes: tuple[Axis, ...], values: Setting, named: Directions) -> Point:
    """Return where a hit lies; whatever it does not name is not to blame, and taken as mildest."""
    return tuple(
        axis.place(number)
        if axis.knob in named and is_number(number := values[axis.knob])
        else 0.0
        for axis in axes
    )


def _facing(axis: Axis, hits: Sequence[Hit]) -> float:
    opposite = (
        axis.place(number)
        for values, named in hits
        if named.get(axis.knob) not in {None, axis.way} and is_number(number := values[axis.knob])
    )
    return max(opposite, default=0.0)


def _point(axes: tuple[Axis, ...], values: Setting) -> Point | None:
    numbers = [number for axis in axes if is_number(number := values.get(axis.knob))]
    if len(numbers) < len(axes):
        return None
    return tuple(axis.place(number) for axis, number in zip(axes, numbers, strict=True))


def _measured(trials: Sequence[Trial]) -> tuple[Setting, ...]:
    """Return the settings that ran, with what the engine took for those that were not set."""
    return tuple(
        {**t.outcome.effective, **t.candidate.values()}
        for t in trials
        if isinstance(t.outcome, Measured)
    )


def _defaults(trials: Sequence[Trial]) -> Setting:
    for trial in trials:
        if isinstance(trial.outcome, Measured) and not trial.candidate.items:
            return trial.outcome.effective
    return {}


def reached(point: Point, corners: Sequence[Point]) -> bool:
    """Say whether some mix of *corners* lies nowhere above *point*."""
    if any(_nowhere_above(corner, point) for corner in corners):
        return True
    if len(corners) < 2 or not _nowhere_above(  # noqa: PLR2004 - a mix takes two
        tuple(min(column) for column in zip(*corners, strict=True)), point
    ):
        return False
    return _mixed(point, corners)


def _mixed(point: Point, corners: Sequence[Point]) -> bool:
    """Ask a small linear programme for the weights of the mix."""
    from scipy.optimize import linprog

    found = linprog(
        c=[0.0] * len(corners),
        A_ub=list(zip(*corners, strict=True)),
        b_ub=[place + ROUNDING for place in point],
        A_eq=[[1.0] * len(corners)],
        b_eq=[1.0],
        bounds=(0, None),
        method="highs-ds",
    )
    return bool(found.status == 0)


def _harshest(points: Sequence[Point]) -> tuple[Point, ...]:
    """Leave out the points that another one is nowhere milder than."""
    distinct = sorted(set(points))
    return tuple(p for p in distinct if not any(p != o and _nowhere_above(p, o) for o in distinct))


def _nowhere_above(one: Point, other: Point) -> bool:
    return all(a <= b + ROUNDING for a, b in zip(one, other, strict=True))


def _half_way(ran: Point, hit: Point) -> Point:
    """Return the harshest point that is no nearer to *hit* than to *ran*, knob by knob."""
    return tuple(max(a, (a + b) / 2) for a, b in zip(ran, hit, strict=True))
