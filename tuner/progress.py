"""What a person sees while a study runs: a live table on a terminal, plain lines elsewhere."""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from runners import Faulted, Invalid, Measured, Rejected
from tuner.clamps import clamps
from tuner.loop import Watcher
from tuner.study import Study
from tuner.trial import Launch, Trial

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_ROWS = 15
GUESS = "an unknown time"


class Progress(Watcher, Protocol):
    """A watcher that people read; entered while the study runs."""

    def say(self, line: str) -> None:
        """Show one line of news."""


@contextmanager
def progress(*, emulated: bool, phase: Callable[[Launch], str], quiet: bool) -> Iterator[Progress]:
    """Give out what suits the place: nothing, a live table, or plain lines on standard error.

    *phase* tells what a running launch is doing right now.
    """
    if quiet:
        yield Quiet()
    elif sys.stderr.isatty():
        yield from _live(emulated=emulated, phase=phase)
    else:
        yield PlainLines(emulated=emulated)


def silence(stream: TextIO) -> None:
    """Send what is written to *stream* nowhere from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Quiet:
    """Shows nothing."""

    def say(self, line: str) -> None:
        """Show nothing."""

    def launched(self, launch: Launch, study: Study) -> None:
        """Show nothing."""

    def ended(self, trial: Trial, study: Study) -> None:
        """Show nothing."""


class PlainLines:
    """One line for each launch that begins or ends."""

    def __init__(self, *, emulated: bool) -> None:
        self._mark = "[emulated] " if emulated else ""

    def say(self, line: str) -> None:
        """Print the line; when nobody reads on, the study does not stop for that."""
        try:
            print(f"{self._mark}{line}", file=sys.stderr, flush=True)  # noqa: T201 -- our job
        except BrokenPipeError:
            silence(sys.stderr)

    def launched(self, launch: Launch, study: Study) -> None:
        """Print what is tried."""
        self.say(f"launch {launch.number} ({launch.stage}): {launch.candidate}")

    def ended(self, trial: Trial, study: Study) -> None:
        """Print what came of it, and how long the rest may take."""
        self.say(f"launch {trial.number} took {trial.took_s:.0f} s: {result(trial)}")
        best = study.best()
        leader = "no setting keeps the limits yet" if best is None else f"best: {result(best)}"
        self.say(f"{study.used} of {study.plan.launches} launches, {eta(study)} left; {leader}")


class LiveTable:
    """A table of the launches that is drawn again as they go."""

    def __init__(self, *, emulated: bool, phase: Callable[[Launch], str]) -> None:
        self._emulated = emulated
        self._phase = phase
        self._study: Study | None = None
        self._news: list[str] = []
        self._began: dict[int, float] = {}

    def say(self, line: str) -> None:
        """Show the line under the table."""
        self._news = [*self._news[-2:], line]

    def launched(self, launch: Launch, study: Study) -> None:
        """Draw a new row."""
        self._began[launch.number] = time.monotonic()
        self._study = study

    def ended(self, trial: Trial, study: Study) -> None:
        """Fill the row."""
        self._study = study

    def __rich__(self) -> "RenderableType":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("launch", "stage", "setting", "result"):
            table.add_column(name)
        if self._study is None:
            return Text("starting Ray ...")
        for cells in self._rows(self._study):
            table.add_row(*(Text(cell) for cell in cells))
        return Group(table, Text(self._summary(self._study)), *map(Text, self._news))

    def _rows(self, study: Study) -> Iterator[tuple[str, str, str, str]]:
        best = study.best()
        for trial in study.trials[-MOST_ROWS:]:
            star = " *" if trial is best else ""
            text = result(trial)
            yield f"{trial.number}{star}", trial.stage, str(trial.candidate), text
        for launch in study.pending:
            since = time.monotonic() - self._began.get(launch.number, time.monotonic())
            doing = f"{self._phase(launch)} ({since:.0f} s)"
            yield str(launch.number), launch.stage, str(launch.candidate), doing

    def _summary(self, study: Study) -> str:
        mark = "EMULATED ENGINE, no figure is a measurement. " if self._emulated else ""
        star = "" if study.best() is None else "; * is the best so far"
        return f"{mark}{study.used} of {study.plan.launches} launches, {eta(study)} left{star}"


def result(trial: Trial) -> str:
    """Say in one line what came of a trial."""
    match trial.outcome:
        case Measured(measurement=m) if trial.score is not None:
            broken = ", ".join(str(margin) for margin in trial.score.broken)
            text = f"{m.output_tokens_per_s:,.0f} tok/s"
            if m.ttft_p95_ms is not None:
                text += f", TTFT p95 {m.ttft_p95_ms:,.0f} ms"
            if m.tpot_p95_ms is not None:
                text += f", TPOT p95 {m.tpot_p95_ms:.1f} ms"
            changed = "".join(f"; {clamp}" for clamp in clamps(trial))
            return f"{text}; {broken or 'keeps every limit'}{changed}"
        case Measured():
            return "measured"
        case Rejected(reason=reason):
            return f"rejected: {reason}"
        case Faulted(reason=reason):
            return f"machine fault: {reason}"
        case Invalid(reason=reason):
            return f"not to be trusted: {reason}"


def eta(study: Study) -> str:
    """Say how long the launches left may take, by the median of those that ran."""
    took = [t.took_s for t in study.trials if isinstance(t.outcome, Measured)]
    if not took:
        return GUESS
    left = study.plan.launches - study.used + len(study.pending)
    return duration(statistics.median(took) * left)


def duration(seconds: float) -> str:
    """Say a duration the way people do."""
    if seconds < 90:  # noqa: PLR2004 -- where people change from seconds to minutes
        return f"about {seconds:.0f} s"
    minutes = seconds / 60
    return f"about {minutes:.0f} min" if minutes < 90 else f"about {minutes / 60:.1f} h"  # noqa: PLR2004


def _live(*, emulated: bool, phase: Callable[[Launch], str]) -> "Iterator[LiveTable]":
    from rich.console import Console
    from rich.live import Live

    table = LiveTable(emulated=emulated, phase=phase)
    with Live(table, console=Console(stderr=True), refresh_per_second=2):
        yield table
