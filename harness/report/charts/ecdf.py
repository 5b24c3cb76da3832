"""Cumulative distributions: what share of the requests waited at most how long.

Not covered: which requests are drawn and how many corners a line has (``latency_ecdf``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.report import style
from harness.report.charts.parts import (
    LONG_TAIL,
    percent,
    tick_duration,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Steps:
    """One variant's cumulative distribution: at most ``values_s[i]`` in ``shares[i]``."""

    variant: str
    place: int
    values_s: tuple[float, ...]
    shares: tuple[float, ...]
    count: int


def ecdf(panels: Sequence[tuple[str, Sequence[Steps]]]) -> Figure:
    """Cumulative distributions side by side: one panel per latency, one line per variant."""
    fig, grid = style.figure(3.3, ncols=len(panels), sharey=True, squeeze=False)
    for axes, (name, lines) in zip(grid[0], panels, strict=True):
        axes.set_title(name)
        for line in lines:
            tone = style.look(line.place)
            axes.step(
                line.values_s,
                line.shares,
                where="post",
                color=tone.color,
                linestyle=tone.dash,
                linewidth=1.7,
                label=style.drawable(line.variant, 24),
            )
        _latency_axis(axes, lines)
        axes.set_ylim(0, 1.03)
        style.tick_text(axes.yaxis, percent, 5)
        style.light_grid(axes, "both")
    grid[0, 0].set_ylabel("share of requests (ITL: of gaps)")
    names, labels = grid[0, 0].get_legend_handles_labels()
    fig.legend(names, labels, loc="outside lower center", ncols=max(1, min(4, len(labels))))
    return fig


def _latency_axis(axes: Axes, lines: Sequence[Steps]) -> None:
    """From zero where the values are of one size, by powers of ten where a few are far longer."""
    values = [value for line in lines for value in line.values_s if value > 0]
    longest = max(values, default=1.0)
    if values and longest > LONG_TAIL * sorted(values)[len(values) // 2]:
        axes.set_xscale("log")
        axes.set_xlabel("lower is better (log scale)")
        axes.xaxis.set_major_formatter(lambda value, _: tick_duration(value))
        axes.xaxis.minorticks_off()
        return
    axes.set_xlim(0, longest * 1.04)
    axes.set_xlabel("lower is better")
    style.tick_text(axes.xaxis, tick_duration, 3)
