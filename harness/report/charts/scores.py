"""Strategies side by side: a panel per figure, the same strategies in the same order in each.

Ratios lie on a logarithmic axis, on which a half and a double are equally far from 1×. How a value
came about is told by its mark: filled is measured, an open circle emulated, an open diamond
modelled; without a value the stamp itself stands there.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.report import style
from harness.units import format_tick_ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

#: Strategies in one picture.
MAX_ROWS = 16
#: Letters in a line of a strategy's name.
_NAME = 24


@dataclass(frozen=True, slots=True)
class Score:
    """One ratio to the baseline, its interval, and its stamp."""

    value: float | None
    stamp: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class ScorePanel:
    """One figure of every strategy; ``better`` says which direction is."""

    title: str
    better: str
    scores: tuple[Score, ...]


def scores(names: Sequence[str], given: Sequence[ScorePanel]) -> Figure:
    """One column per panel, one row per name; panels without any value are left out."""
    shown = [panel for panel in given if any(s.value is not None for s in panel.scores)]
    panels = shown or list(given[:1])
    rows = names[:MAX_ROWS]
    figure, grid = style.figure(
        1.7 + 0.36 * max(len(rows), 1), ncols=len(panels), sharey=True, squeeze=False
    )
    for axes, panel in zip(grid[0], panels, strict=True):
        _panel(axes, panel, len(rows))
    labels = ["\n".join(textwrap.wrap(style.drawable(name, 46), _NAME)[:2]) for name in rows]
    grid[0, 0].set_yticks(range(len(rows)), labels, fontsize=8.5)
    stamps = {s.stamp for p in panels for s in p.scores if s.value is not None}
    keys = [_key(stamp) for stamp in _MARKS if stamp in stamps]
    figure.legend(handles=keys, loc="outside lower center", ncols=max(1, len(keys)))
    return figure


def _panel(axes: Axes, panel: ScorePanel, rows: int) -> None:
    given = panel.scores[:rows]
    axes.axvline(1.0, color=style.MUTED, linewidth=0.9, linestyle=":")
    for place, score in enumerate(given):
        if score.value is None or score.value <= 0:
            axes.text(1.0, place, score.stamp, fontsize=7.5, color=style.MUTED, va="center")
        else:
            _mark(axes, place, score, score.value)
    _ratio_axis(axes, given)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_title("\n".join(textwrap.wrap(panel.title, 12)), fontsize=9)
    axes.set_xlabel(panel.better.replace(", ", ",\n"), fontsize=7.5)
    axes.tick_params(axis="x", labelsize=7.5)
    style.light_grid(axes, "x")


def _ratio_axis(axes: Axes, given: Sequence[Score]) -> None:
    """Powers of two (of ten where those are too many) around 1×, a tick on every one."""
    ends = [1.0, *(v for s in given for v in (s.value, s.low, s.high) if v is not None and v > 0)]
    base = 2.0 if max(ends) / min(ends) <= 64 else 10.0
    low = math.floor(math.log(min(ends) / 1.05, base))
    high = max(math.ceil(math.log(max(ends) * 1.05, base)), low + 2)
    stride = -(-(high - low) // 3)
    ticks = [base**power for power in range(low, high + 1) if power % stride == 0]
    axes.set_xscale("log", base=base)
    axes.set_xlim(base**low, base**high)
    axes.set_xticks(ticks, [_ratio(tick) for tick in ticks])
    axes.minorticks_off()


def _ratio(tick: float) -> str:
    return format_tick_ratio(tick) if tick >= 0.5 else f"1/{format_tick_ratio(1 / tick)}"


#: Marker, and whether it is filled, by stamp.
_MARKS = {"measured": ("o", True), "emulated": ("o", False), "modelled": ("D", False)}


def _mark(axes: Axes, place: int, score: Score, value: float) -> None:
    if score.low is not None and score.high is not None and score.low > 0:
        axes.plot([score.low, score.high], [place, place], color=style.INK, linewidth=1.6)
    marker, filled = _MARKS.get(score.stamp, ("s", False))
    color = style.look(0).color
    axes.plot(
        value,
        place,
        marker=marker,
        markersize=7,
        linestyle="none",
        markeredgecolor=color,
        markerfacecolor=color if filled else style.PAPER,
    )


def _key(stamp: str) -> Line2D:
    from matplotlib.lines import Line2D

    marker, filled = _MARKS[stamp]
    color = style.look(0).color
    return Line2D(
        [],
        [],
        linestyle="none",
        marker=marker,
        markersize=7,
        markeredgecolor=color,
        markerfacecolor=color if filled else style.PAPER,
        label=stamp,
    )
