"""One figure to draw on, saved as a PNG: large enough to print, told apart without colours."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

INK, PALE, LIMIT = "#1f3b63", "#c8571b", "#444444"
SMALL, WIDE = (4.6, 3.6), (9.0, 3.7)
DPI = 150


@contextmanager
def canvas(
    path: Path, size: tuple[float, float], panels: int = 1, *, title: str | None = None
) -> Iterator[list[Any]]:
    """Give out *panels* axes side by side; what is drawn on them is saved to *path*."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style = {"font.size": 8.5, "axes.spines.top": False, "axes.spines.right": False}
    with rc_context({**style, "axes.grid": True, "grid.color": "#e6e6e6", "axes.axisbelow": True}):
        figure = Figure(figsize=size, layout="constrained")
        axes = [figure.add_subplot(1, panels, 1 + i) for i in range(panels)]
        if title is not None:
            figure.suptitle(title, fontsize=8.5, fontweight="bold")
        yield axes
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DPI, metadata={"Software": None})


def legend_below(panels: Sequence[Any], columns: int = 3) -> None:
    """Explain the marks of all *panels* under the plot, where they hide nothing."""
    marks: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        marks |= dict(zip(labels, handles, strict=True))
    panels[0].figure.legend(
        marks.values(),
        marks.keys(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=7.5,
    )
