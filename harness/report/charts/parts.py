"""What several charts share: the chart as a value, marks, row names, ticks, errors in words.

Not covered: colours, fonts and files, which are every picture's (``style``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import units
from harness.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: More columns than these can't be read side by side.
MAX_COLUMNS = 3
#: More labelled marks than these overlap on the identity line.
MAX_MARKS = 4
#: Where the longest latency is so many times the median, a linear axis shows an edge alone.
LONG_TAIL = 12.0
#: How far a bound may stretch an axis before it is named at the edge instead.
_STRETCH = 1.6


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart to be drawn: ``alt`` says in words what its picture shows."""

    name: str
    title: str
    caption: str
    alt: str
    draw: Callable[[], Figure]


def tick_duration(seconds: float) -> str:
    """A round tick: ``500 ms``, ``10 s``."""
    return "0" if seconds == 0 else style.trimmed(units.format_duration(seconds))


def signed(error: float | None) -> str:
    """``error +5.6 %``; a sign stands only before digits that are not all zero."""
    if error is None:
        return "error unknown"
    if round(abs(error), 3) == 0:
        return f"error {units.format_percent(0.0)}"
    return f"error {'+' if error > 0 else ''}{units.format_percent(error)}"


def error_of(predicted: float | None, found: float | None) -> float | None:
    """By which share of the prediction the finding is off; None if either is unknown."""
    if not predicted or found is None:
        return None
    return (found - predicted) / predicted


def percent(fraction: float) -> str:
    """A whole percentage, for ticks."""
    return units.format_percent(fraction, 0)


def mark(axes: Axes, place: int, x: float, y: float, *, size: float, hollow: bool = False) -> None:
    """The marker of the variant at ``place``, filled or open."""
    tone = style.look(place)
    axes.plot(
        x,
        y,
        marker=tone.marker,
        markersize=size,
        linestyle="none",
        clip_on=False,
        markerfacecolor=style.PAPER if hollow else tone.color,
        markeredgecolor=tone.color,
        markeredgewidth=1.5,
    )


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a bar chart, the first on top."""
    axes.set_yticks(range(len(names)), [style.drawable(name, 24) for name in names])
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)


def with_ceiling(top: float, bound: Sequence[float]) -> float:
    """The top of what was measured, or of a bound that does not press it flat."""
    near = max(bound, default=0.0)
    return max(top, near if near <= top * _STRETCH else 0.0)


def ceiling_line(axes: Axes, x: Sequence[float], y: Sequence[float], text: str) -> None:
    """A bound that theory sets, inside the limits that the axes already have.

    Its name stands at its last point; where that lies above the picture, at the upper edge with
    an arrow, so that a far bound does not press what was measured flat.
    """
    low, high = axes.get_ylim()
    axes.plot(x, y, color=style.INK, linewidth=1.1, linestyle=(0, (7, 2, 1, 2)))
    axes.set_ylim(low, high)
    outside = y[-1] > high
    axes.annotate(
        f"▲ {text}" if outside else text,
        (0.99, 0.985) if outside else (x[-1], y[-1]),
        xycoords="axes fraction" if outside else "data",
        xytext=(0, 0) if outside else (0, 3),
        textcoords="offset points",
        ha="right",
        va="top" if outside else "bottom",
        fontsize=8,
        color=style.MUTED,
    )


def nothing(axes: Axes, why: str) -> None:
    """Say in place of a picture why there is none."""
    axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes, color=style.MUTED)
    axes.set_xticks([])
    axes.set_yticks([])
