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
    for mark in marks:
        _mark(axes, mark)
    for shape, trail in zip(_HOLLOW * (1 + len(trails) // len(_HOLLOW)), trails, strict=False):
        _trail(axes, trail, shape)
    _frame(axes, marks, trails, levels)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8.5)
    return figure


def _level(axes: Axes, level: Level, number: int) -> None:
    dash = ("--", ":")[number % 2]
    label = style.drawable(level.label, 60)
    axes.axhline(level.perplexity, color=style.INK, linewidth=1.1, linestyle=dash, label=label)
    if level.size_bytes is not None:
        axes.axvline(level.size_bytes, color=style.INK, linewidth=1.1, linestyle=dash)


def _mark(axes: Axes, mark: Mark) -> None:
    look = style.look(mark.place)
    axes.plot(
        [mark.size_bytes],
        [mark.perplexity],
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
    axes: Axes, marks: Sequence[Mark], trails: Sequence[Trail], levels: Sequence[Level]
) -> None:
    points = [(mark.size_bytes, mark.perplexity) for mark in marks]
    points += [point for trail in trails for point in trail.points]
    sizes = [x for x, _ in points]
    sizes += [level.size_bytes for level in levels if level.size_bytes is not None]
    heights = [*(y for _, y in points), *(level.perplexity for level in levels)]
    right, low, high = max(sizes), min(heights), max(heights)
    margin = (high - low) * 0.08 or high * 0.05
    axes.set_xlim(0, right * 1.06)
    axes.set_ylim(low - margin, high + margin)
    axes.set_title("Nearer to the lower left is better")
    axes.set_xlabel("KV memory of one request while it decodes")
    axes.set_ylabel("perplexity of the texts' tails")
    style.byte_ticks(axes.xaxis, right)
    style.tick_text(axes.yaxis, lambda value: units.format_count(value, 1))
    style.light_grid(axes, "both")
