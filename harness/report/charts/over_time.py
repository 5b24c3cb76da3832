"""The KV pool and the queue over time, one column per variant, one clock.

Not covered: how the moments are chosen and thinned (``timeline``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import units
from harness.report import style
from harness.report.charts.parts import (
    percent,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Timeline:
    """One trial on its clock: seconds since the measured load began.

    ``kv_used``, the theory band and ``pool`` are in tokens where the pool's size is known
    (``in_tokens``), else fractions of it and ``pool`` is 1. ``running`` and ``waiting`` are None
    at a moment whose gauge was not read.
    """

    variant: str
    place: int
    times_s: tuple[float, ...]
    kv_used: tuple[float, ...]
    running: tuple[float | None, ...]
    waiting: tuple[float | None, ...]
    pool: float
    in_tokens: bool
    preempted_at_s: tuple[float, ...] = ()
    theory_times_s: tuple[float, ...] = ()
    theory_low: tuple[float, ...] = ()
    theory_high: tuple[float, ...] = ()


def occupancy(lines: Sequence[Timeline]) -> Figure:
    """One column per variant: the KV pool in use above, requests running and waiting below."""
    fig, grid = style.figure(
        4.4,
        nrows=2,
        ncols=len(lines),
        sharex=True,
        sharey="row",
        squeeze=False,
        height_ratios=[1.3, 1],
    )
    top = max(line.pool for line in lines)
    # The columns share their axis: it must hold the longest queue of all.
    most = max((v for line in lines for v in (*line.running, *line.waiting) if v), default=1.0)
    for column, line in enumerate(lines):
        _kv_over_time(grid[0, column], line, top)
        _queue_over_time(grid[1, column], line, most)
    unit = "tokens" if lines[0].in_tokens else "share of the pool"
    grid[0, 0].set_ylabel(f"KV in use ({unit})")
    grid[1, 0].set_ylabel("requests")
    for axes in grid[1]:
        axes.set_xlabel("seconds since the load began")
    fig.align_ylabels()
    fig.legend(handles=_occupancy_keys(lines), loc="outside lower center", ncols=5)
    return fig


def _occupancy_keys(lines: Sequence[Timeline]) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    solid = Line2D([], [], color=style.look(lines[0].place).color, linewidth=1.6)
    solid.set_label("engine's gauge, running")
    keys: list[Artist] = [solid]
    if any(line.theory_times_s for line in lines):
        keys.append(Patch(facecolor=style.RULE, label="by the request log"))
    keys.append(Line2D([], [], color=style.INK, linestyle=(0, (1, 1.5)), label="whole pool"))
    keys.append(Line2D([], [], color=style.INK, linestyle=(0, (4, 2)), label="waiting"))
    if any(line.preempted_at_s for line in lines):
        keys.append(
            Line2D([], [], color=style.INK, linestyle="none", marker="x", label="preempted")
        )
    return keys


def _kv_over_time(axes: Axes, line: Timeline, top: float) -> None:
    tone = style.look(line.place)
    axes.set_title(style.drawable(line.variant, 24))
    if line.theory_times_s:
        axes.fill_between(
            line.theory_times_s, line.theory_low, line.theory_high, color=style.RULE, linewidth=0
        )
        axes.plot(line.theory_times_s, line.theory_low, color=style.MUTED, linewidth=0.8)
    axes.plot(line.times_s, line.kv_used, color=tone.color, linewidth=1.6)
    axes.axhline(line.pool, color=style.INK, linewidth=1, linestyle=(0, (1, 1.5)))
    if line.preempted_at_s:
        axes.plot(
            line.preempted_at_s,
            [line.pool] * len(line.preempted_at_s),
            marker="x",
            markersize=6,
            color=style.INK,
            linestyle="none",
        )
    size = f"{units.format_count(line.pool)} tokens" if line.in_tokens else "100 %"
    axes.annotate(
        f"whole pool: {size}",
        (0, line.pool),
        xytext=(3, 4),
        fontsize=8.5,
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
    )
    axes.set_ylim(0, top * 1.16)
    style.tick_text(axes.yaxis, units.format_count if line.in_tokens else percent, 5)
    style.light_grid(axes, "y")


def _queue_over_time(axes: Axes, line: Timeline, most: float) -> None:
    axes.step(
        line.times_s,
        _with_gaps(line.running),
        where="post",
        color=style.look(line.place).color,
        linewidth=1.6,
        label="running",
    )
    axes.step(
        line.times_s,
        _with_gaps(line.waiting),
        where="post",
        color=style.INK,
        linewidth=1.2,
        linestyle=(0, (2, 1.5)),
        label="waiting",
    )
    if all(value is None for value in (*line.running, *line.waiting)):
        axes.text(0.5, 0.5, "not read", ha="center", transform=axes.transAxes, color=style.MUTED)
    axes.set_ylim(0, max(most, 1.0) * 1.25)
    style.tick_text(axes.yaxis, units.format_count, 4)
    digits = 0 if max(line.times_s) - min(line.times_s) > 5 else 1
    style.tick_text(axes.xaxis, lambda t: units.format_count(t, digits), 5)
    style.light_grid(axes, "y")


def _with_gaps(values: Sequence[float | None]) -> list[float]:
    """As matplotlib takes them: it draws nothing where a value is not a number."""
    return [math.nan if value is None else value for value in values]
