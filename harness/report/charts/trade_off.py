"""The chart of what is kept against what it costs: memory to the right, perplexity upwards.

Servers' variants are filled marks. Another engine's are hollow ones, joined where they are one
policy at several strengths, so that nobody takes them for the servers'. Lines show what is to be
had with everything kept. Not covered: which figures are drawn (``strategy_eviction``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import units
from harness.report import style
from harness.units import Bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Shapes that no variant of a server has.
_HOLLOW = ("p", "h", "X", "*", "d", "<")
#: A mark so many times the others' range above them would press them flat.
_FAR = 2.0
#: A range of perplexity whose ticks are less than a tenth apart, or rounded to look uneven.
_FINE = 2.0


@dataclass(frozen=True, slots=True)
class Mark:
    """One variant of a server: where it stands, and its place among the charts' colours."""

    label: str
    place: int
    size_bytes: Bytes | float
    perplexity: float


@dataclass(frozen=True, slots=True)
class Trail:
    """One policy of another engine at several strengths, from the mildest to the strongest."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Level:
    """What keeping everything costs and gives in one engine; drawn as lines."""

    label: str
    perplexity: float
    size_bytes: Bytes | float | None = None


def draw(marks: Sequence[Mark], trails: Sequence[Trail], levels: Sequence[Level]) -> Figure:
    """All of it on one pair of axes, the legend below."""
    rows = -(-(len(marks) + len(trails) + len(levels)) // 2)
    figure, axes = style.figure(3.6 + 0.19 * rows)
    for number, level in enumerate(levels):
        _level(axes, level, number)
    top = _top(marks, trails, levels)
    for mark in marks:
        _mark(axes, mark, top)
    for shape, trail in zip(_HOLLOW * (1 + len(trails) // len(_HOLLOW)), trails, strict=False):
        _trail(axes, trail, shape)
    _frame(axes, marks, trails, levels, top)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8.5)
    return figure


def _level(axes: Axes, level: Level, number: int) -> None:
    dash = ("--", ":")[number % 2]
    label = style.drawable(level.label, 60)
    axes.axhline(level.perplexity, color=style.INK, linewidth=1.1, linestyle=dash, label=label)
    if level.size_bytes is not None:
        axes.axvline(level.size_bytes, color=style.INK, linewidth=1.1, linestyle=dash)


def _heights(
    marks: Sequence[Mark], trails: Sequence[Trail], levels: Sequence[Level]
) -> list[float]:
    trailed = (y for trail in trails for _, y in trail.points)
    return [*(mark.perplexity for mark in marks), *trailed, *(one.perplexity for one in levels)]


def _top(marks: Sequence[Mark], trails: Sequence[Trail], levels: Sequence[Level]) -> float:
    """The highest perplexity on the axis; servers' marks far above all others are left above.

    Far is more than ``_FAR`` times the range of what stays; half of the marks stay.
    """
    kept = sorted(marks, key=lambda mark: mark.perplexity)
    while len(kept) > max(1, len(marks) // 2):
        rest = _heights(kept[:-1], trails, levels)
        if kept[-1].perplexity - max(rest) <= _FAR * (max(rest) - min(rest)):
            break
        kept.pop()
    return max(_heights(kept, trails, levels))


def _mark(axes: Axes, mark: Mark, top: float) -> None:
    look = style.look(mark.place)
    if mark.perplexity > top:
        axes.annotate(
            f"▲ {units.format_count(mark.perplexity, 1)}, above this picture",
            (mark.size_bytes, top),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    axes.plot(
        [mark.size_bytes],
        [min(mark.perplexity, top)],
        marker=look.marker,
        markersize=9,
        linestyle="none",
        color=look.color,
        label=style.drawable(mark.label, 48),
        zorder=3,
    )


def _trail(axes: Axes, trail: Trail, shape: str) -> None:
    axes.plot(
        [x for x, _ in trail.points],
        [y for _, y in trail.points],
        marker=shape,
        markersize=8,
        markerfacecolor="none",
        markeredgewidth=1.3,
        linewidth=0.8,
        color=style.MUTED,
        label=style.drawable(trail.label, 48),
    )


def _frame(
    axes: Axes,
    marks: Sequence[Mark],
    trails: Sequence[Trail],
    levels: Sequence[Level],
    high: float,
) -> None:
    points = [(mark.size_bytes, mark.perplexity) for mark in marks]
    points += [point for trail in trails for point in trail.points]
    sizes = [x for x, _ in points]
    sizes += [level.size_bytes for level in levels if level.size_bytes is not None]
    right, low = max(sizes), min(_heights(marks, trails, levels))
    margin = (high - low) * 0.08 or high * 0.05
    axes.set_xlim(0, right * 1.06)
    axes.set_ylim(low - margin, high + margin)
    axes.set_title("Nearer to the lower left is better")
    axes.set_xlabel("KV memory of one request while it decodes")
    axes.set_ylabel("perplexity of the texts' tails")
    style.byte_ticks(axes.xaxis, right)
    digits = 1 if high - low > _FINE else 2
    style.tick_text(axes.yaxis, lambda value: units.format_count(value, digits))
    style.light_grid(axes, "both")
