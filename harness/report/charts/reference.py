"""What a growing, a reserved and no cache take on the reference engine: times, and bytes held.

Not covered: which figures are drawn and how a line is called (``report.reference``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import units
from harness.report import style
from harness.report.charts.parts import tick_duration
from harness.units import Bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class TimeLine:
    """Seconds by length in tokens; ``place`` None is what lies between two of the variants."""

    label: str
    place: int | None
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class HeldBar:
    """The bytes of one request's cache: held, and needed by the formula."""

    label: str
    place: int
    held_bytes: Bytes
    needed_bytes: Bytes | None


def time_lines(one_token: Sequence[TimeLine], sequence: Sequence[TimeLine]) -> Figure:
    """Time of one token and of a whole sequence, both by length, on logarithmic axes."""
    figure, (left, right) = style.figure(3.9, ncols=2)
    _lines(left, one_token)
    left.set_title("time of one token")
    left.set_xlabel("tokens that it sees")
    _lines(right, sequence)
    right.set_title("time of a whole sequence")
    right.set_xlabel("tokens generated until then, prompt included")
    return figure


def _lines(axes: Axes, lines: Sequence[TimeLine]) -> None:
    for line in lines:
        look = style.look(line.place) if line.place is not None else None
        axes.plot(
            [length for length, _ in line.points],
            [seconds for _, seconds in line.points],
            color=look.color if look is not None else style.MUTED,
            marker=look.marker if look is not None else None,
            linestyle=look.dash if look is not None else "-",
            linewidth=None if look is not None else 0.9,
            label=style.drawable(line.label, 60),
        )
    _log_axes(axes)
    axes.legend(loc="upper left", fontsize=8)


def _log_axes(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=7))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: units.format_count(n)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda t, _: tick_duration(t)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    # Room for the legend above the curves.
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.45)
    style.light_grid(axes, "both")


def held_bars(bars: Sequence[HeldBar]) -> Figure:
    """One bar per request and variant; an upright mark where its need is known."""
    figure, axes = style.figure(0.9 + 0.34 * len(bars))
    for row, bar in enumerate(bars):
        look = style.look(bar.place)
        axes.barh(row, bar.held_bytes, 0.7, color=look.color, hatch=look.hatch, alpha=0.75)
        if bar.needed_bytes is not None:
            axes.plot([bar.needed_bytes] * 2, [row - 0.42, row + 0.42], color=style.INK, lw=2)
        text = f" {units.format_bytes(bar.held_bytes)}"
        axes.text(bar.held_bytes, row, text, va="center", fontsize=8.5)
    axes.set_yticks(range(len(bars)), [style.drawable(bar.label, 40) for bar in bars])
    axes.invert_yaxis()
    top = max(bar.held_bytes for bar in bars)
    axes.set_xlim(0, top * 1.2)
    style.byte_ticks(axes.xaxis, top)
    style.light_grid(axes, "x")
    return figure
