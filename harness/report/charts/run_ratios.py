"""Runs against the first of them: per figure a panel of ratios with their intervals.

A mark is hollow where a single observation has no interval. Not covered: which ratios are drawn
(``report.run_comparison``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import units
from harness.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Marks in one panel that a reader can still name.
MAX_MARKS = 14


@dataclass(frozen=True, slots=True)
class RatioMark:
    """One run's figure over the first run's; ``place`` is the run's, ``exact`` needs no interval.

    ``low`` and ``high`` are None where there is no interval.
    """

    name: str
    place: int
    ratio: float
    low: float | None
    high: float | None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class RatioPanel:
    """One figure's ratios."""

    title: str
    marks: tuple[RatioMark, ...]


def run_ratios(panels: Sequence[RatioPanel]) -> Figure:
    """One panel below the other, a row per mark."""
    heights = [len(panel.marks) + 1.6 for panel in panels]
    figure, grid = style.figure(
        0.6 + 0.27 * sum(heights),
        nrows=len(panels),
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
    )
    for row, panel in zip(grid, panels, strict=True):
        _panel(row[0], panel)
    return figure


def _panel(axes: Axes, panel: RatioPanel) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.axvline(1.0, color=style.MUTED, linewidth=0.9, linestyle=":")
    for row, mark in enumerate(panel.marks):
        _mark(axes, row, mark)
    names = [style.drawable(mark.name, 52) for mark in panel.marks]
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_title(panel.title, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: units.format_tick_ratio(ratio)))
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlim(*_limits(panel.marks))
    style.light_grid(axes, "x")


def _mark(axes: Axes, row: int, mark: RatioMark) -> None:
    tone = style.look(mark.place)
    if mark.low is not None and mark.high is not None:
        axes.plot([mark.low, mark.high], [row, row], color=style.INK, linewidth=1.6)
    axes.plot(
        mark.ratio,
        row,
        marker=tone.marker,
        markersize=6.5,
        linestyle="none",
        markeredgecolor=tone.color,
        markerfacecolor=tone.color if mark.low is not None or mark.exact else style.PAPER,
    )


def _limits(marks: Sequence[RatioMark]) -> tuple[float, float]:
    """At least 5 % to either side of 1, so that nothing looks like something."""
    ends = [1.0, *(end for m in marks for end in (m.ratio, m.low, m.high) if end is not None)]
    low, high = min(*ends, 0.95), max(*ends, 1.05)
    room = 0.04 * (high - low)
    return low - room, high + room
