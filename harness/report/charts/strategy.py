"""Charts of the strategies: lines over a length, shares of a pool, predicted beside measured.

Each is a function of plain values and answers one question; axes start at zero. Not covered: what
a title says, which the strategies' sections decide from the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import units
from harness.report import style
from harness.report.charts.memory import Pair, paired_bars
from harness.report.charts.parts import ceiling_line, with_ceiling

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Curve:
    """Marks of one variant, and the straight line that theory or a fit draws through them."""

    label: str
    place: int
    x: tuple[float, ...]
    y: tuple[float, ...]
    line_x: tuple[float, ...] = ()
    line_y: tuple[float, ...] = ()
    line_label: str = ""
    joined: bool = False


@dataclass(frozen=True, slots=True)
class CeilingLine:
    """What theory says can't be passed, along the x axis."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    label: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes: its curves, and how its values are written (None: as memory sizes)."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    y_text: Callable[[float], str] | None = None
    vertical: tuple[tuple[float, str], ...] = ()
    ceiling: CeilingLine | None = None


@dataclass(frozen=True, slots=True)
class Shares:
    """A pool divided into what stores tokens, what is held for nothing, and what is free."""

    label: str
    stored: float
    held: float


def panels(rows: Sequence[Sequence[Panel]]) -> Figure:
    """Rows of panels side by side; a legend in the first of each row."""
    fig, grid = style.figure(
        0.4 + 2.9 * len(rows), nrows=len(rows), ncols=len(rows[0]), squeeze=False
    )
    for axes_row, row in zip(grid, rows, strict=True):
        for axes, panel in zip(axes_row, row, strict=True):
            _panel(axes, panel)
        if any(curve.label for curve in row[0].curves):
            axes_row[0].legend(loc="best")
    return fig


def _panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(style.drawable(panel.title, 60))
    for curve in panel.curves:
        _curve(axes, curve)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_xlim(left=0)
    top = max((y for curve in panel.curves for y in curve.y), default=0.0)
    bound = panel.ceiling.y if panel.ceiling is not None else ()
    axes.set_ylim(0, with_ceiling(top, bound) * 1.1 or 1.0)
    if panel.ceiling is not None:
        ceiling_line(axes, panel.ceiling.x, panel.ceiling.y, panel.ceiling.label)
    style.tick_text(axes.xaxis, units.format_count)
    axes.locator_params(axis="x", integer=True)
    for number, (position, label) in enumerate(panel.vertical):
        _upright(axes, position, label, left=number == 0, above=_is_low(panel, position, top))
    if panel.y_text is None:
        style.byte_ticks(axes.yaxis, top)
    else:
        style.tick_text(axes.yaxis, panel.y_text)
    style.light_grid(axes, "both")


def _is_low(panel: Panel, position: float, top: float) -> bool:
    """Whether what is drawn at this place lies in the lower half, so that the upper is free."""
    near = [
        curve.y[min(range(len(curve.x)), key=lambda at: abs(curve.x[at] - position))]
        for curve in panel.curves
        if curve.x
    ]
    return max(near, default=0.0) < top / 2


def _upright(axes: Axes, position: float, label: str, *, left: bool, above: bool) -> None:
    """A dashed line at one place of the x axis, its name along it, on the side that is free."""
    axes.axvline(position, color=style.INK, linewidth=1, linestyle=(0, (4, 2)))
    axes.annotate(
        label,
        (position, 0.97 if above else 0.03),
        xycoords=("data", "axes fraction"),
        xytext=(-3 if left else 3, 0),
        textcoords="offset points",
        fontsize=8,
        rotation=90,
        va="top" if above else "bottom",
        ha="right" if left else "left",
        color=style.MUTED,
    )


def _curve(axes: Axes, curve: Curve) -> None:
    tone = style.look(curve.place)
    axes.plot(
        curve.x,
        curve.y,
        marker=tone.marker,
        markersize=6,
        linestyle=tone.dash if curve.joined else "none",
        linewidth=1.7,
        color=tone.color,
        label=style.drawable(curve.label) if curve.label else None,
    )
    if curve.line_x:
        axes.plot(
            curve.line_x,
            curve.line_y,
            color=tone.color,
            linewidth=1.2,
            linestyle=tone.dash,
            label=style.drawable(curve.line_label, 40) if curve.line_label else None,
        )


def pairs(title: str, unit: str, given: Sequence[Pair]) -> Figure:
    """Per row a dashed outline (predicted) above a filled bar (measured)."""
    fig, axes = style.figure(1.1 + 0.62 * len(given))
    words = ("predicted", "measured")
    paired_bars(axes, given, words=words, render=_count, room=1.35)
    _rows(axes, [pair.label for pair in given])
    axes.set_title(title)
    axes.set_xlabel(unit)
    style.tick_text(axes.xaxis, units.format_count, 6)
    return fig


def _count(value: float | None) -> str:
    """A count with a decimal only where it is not whole."""
    return units.format_count(value, 0 if value is None or float(value).is_integer() else 1)


def shares(given: Sequence[Shares]) -> Figure:
    """One bar per variant over the whole pool: stored, held for nothing, free."""
    from matplotlib.patches import Patch

    fig, axes = style.figure(1.5 + 0.55 * len(given))
    stored, held = style.look(0), style.look(1)
    for row, bar in enumerate(given):
        axes.barh(row, bar.stored, 0.6, facecolor=stored.color, edgecolor=style.PAPER)
        axes.barh(
            row,
            bar.held,
            0.6,
            bar.stored,
            facecolor=held.color,
            edgecolor=style.PAPER,
            hatch=held.hatch,
        )
        axes.barh(
            row,
            max(1.0 - bar.stored - bar.held, 0.0),
            0.6,
            bar.stored + bar.held,
            facecolor="none",
            edgecolor=style.MUTED,
        )
        text = f"{units.format_percent(bar.stored)} stored, {units.format_percent(bar.held)} wasted"
        axes.text(1.02, row, text, va="center", fontsize=8.5)
    _rows(axes, [bar.label for bar in given])
    axes.set_xlim(0, 1.6)
    style.tick_text(axes.xaxis, lambda value: "" if value > 1 else units.format_percent(value, 0))
    axes.set_xlabel("share of the KV pool, mean over the load")
    keys = [
        Patch(facecolor=stored.color, label="stores tokens"),
        Patch(
            facecolor=held.color, hatch=held.hatch, edgecolor=style.PAPER, label="held, stores none"
        ),
        Patch(facecolor="none", edgecolor=style.MUTED, label="free"),
    ]
    fig.legend(handles=keys, loc="outside lower center", ncols=3)
    return fig


def _rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [style.drawable(name, 34) for name in names])
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
