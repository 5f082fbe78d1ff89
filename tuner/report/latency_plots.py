"""Plots of single requests: how TTFT and TPOT spread within one launch, and between two."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from objectives import Limit
from tuner.report.canvas import INK, LIMIT, PALE, SMALL, WIDE, canvas, legend_below
from tuner.report.latencies import Latencies
from tuner.report.page import Picture

PANELS = {"ttft": "TTFT (ms)", "tpot": "TPOT (ms)"}
LINES = ((50, ":"), (95, "-"), (99, "-."))
MOST_BINS = 40
STYLES: tuple[dict[str, Any], ...] = (
    {"linestyle": "--", "color": PALE, "linewidth": 1.5},
    {"linestyle": "-", "color": INK, "linewidth": 1.8},
)


def plot_launch(
    latencies: Latencies, limits: Sequence[Limit], path: Path, *, title: str
) -> Picture:
    """Draw the latencies of one launch: p50, p95, p99, the tail beyond p95, and the limits."""
    with canvas(path, WIDE, panels=2, title=title) as panels:
        for axes, (family, name) in zip(panels, PANELS.items(), strict=True):
            values = latencies.of(family)
            _histogram(axes, values)
            _limit_lines(axes, limits, family)
            axes.set(xlabel=name, ylabel="requests")
        legend_below(panels, columns=6)
    return Picture(path, f"{title}: TTFT and TPOT of each measured request.")


def plot_spread(
    launches: Mapping[str, Latencies],
    limits: Sequence[Limit],
    family: str,
    folder: Path,
    *,
    title: str | None = None,
) -> Picture:
    """Draw how the latencies of several launches spread, as shares of their requests."""
    path = folder / f"{family}_spread.png"
    with canvas(path, SMALL, title=title) as (axes,):
        bins = _bins([v for launch in launches.values() for v in launch.of(family)])
        for (name, launch), style in zip(launches.items(), STYLES, strict=False):
            values = launch.of(family)
            weights = [100 / max(len(values), 1)] * len(values)
            axes.hist(values, bins, weights=weights, histtype="step", label=name, **style)
        _limit_lines(axes, limits, family)
        axes.set(xlabel=PANELS[family], ylabel="share of requests (%)")
        legend_below([axes], columns=2)
    return Picture(path, f"{family.upper()} of each measured request.")


def plot_share_below(
    launches: Mapping[str, Latencies],
    limits: Sequence[Limit],
    family: str,
    folder: Path,
    *,
    title: str | None = None,
) -> Picture:
    """Draw which share of the requests was at least as fast (the empirical distribution)."""
    path = folder / f"{family}_share_below.png"
    with canvas(path, SMALL, title=title) as (axes,):
        for (name, launch), style in zip(launches.items(), STYLES, strict=False):
            if launch.of(family):
                axes.ecdf(launch.of(family), label=name, **style)
        axes.axhline(0.95, color="#777777", linewidth=0.9, linestyle=":", label="95 %")
        _limit_lines(axes, limits, family)
        axes.set(xlabel=PANELS[family], ylabel="share of requests at or below", ylim=(0, 1.02))
        legend_below([axes], columns=2)
    return Picture(path, f"Share of the measured requests with at most this {family.upper()}.")


def _histogram(axes: Any, values: Sequence[float]) -> None:
    if not values:
        axes.text(0.5, 0.5, "no figure", transform=axes.transAxes, ha="center")
        return
    import numpy as np

    axes.hist(values, _bins(values), facecolor="#c9d5e6", edgecolor=INK, linewidth=0.5)
    marks = [float(np.percentile(values, p, method="higher")) for p, _ in LINES]
    for (percent, style), mark in zip(LINES, marks, strict=True):
        axes.axvline(mark, color=INK, linestyle=style, linewidth=1.3, label=f"p{percent}")
    tail = {"hatch": "///", "facecolor": "none", "edgecolor": "#999999", "linewidth": 0}
    axes.axvspan(marks[1], max(values), label="slowest 5 %", zorder=0, **tail)


def _limit_lines(axes: Any, limits: Sequence[Limit], family: str) -> None:
    for limit in limits:
        if limit.metric.startswith(family):
            name = f"limit on {limit.metric.removeprefix(family + '_').removesuffix('_ms')}"
            axes.axvline(limit.bound, color=LIMIT, linestyle=(0, (6, 2)), linewidth=2, label=name)


def _bins(values: Sequence[float]) -> Any:
    import numpy as np

    if not values:
        return MOST_BINS
    return np.histogram_bin_edges(values, bins=min(MOST_BINS, 5 + int(len(values) ** 0.5)))
