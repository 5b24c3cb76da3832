"""What a load gave: output throughput with every replicate, typical and bad latencies.

Not covered: how latencies spread (``ecdf``), what a request waits for (``phases``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import units
from harness.report import style
from harness.report.charts.parts import (
    mark,
    name_rows,
    tick_duration,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Bar:
    """One variant's figure: the median of its replicates, and each of them."""

    variant: str
    place: int
    value: float | None
    replicates: tuple[float, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class BarGroup:
    """The bars of one workload."""

    label: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """A latency's typical and bad case, in seconds."""

    variant: str
    place: int
    p50_s: float | None
    p90_s: float | None


@dataclass(frozen=True, slots=True)
class LatencyGroup:
    """TTFT and TPOT of every variant under one workload."""

    label: str
    ttft: tuple[Spread, ...]
    tpot: tuple[Spread, ...]


def throughput(groups: Sequence[BarGroup]) -> Figure:
    """Output throughput per workload: bars from zero, replicates as dots."""
    rows = [len(group.bars) for group in groups]
    fig, grid = style.figure(
        0.6 + sum(0.42 * count + 0.62 for count in rows),
        nrows=len(groups),
        height_ratios=[count + 0.6 for count in rows],
        squeeze=False,
    )
    for axes, group in zip(grid[:, 0], groups, strict=True):
        _bars(axes, group)
    grid[-1, 0].set_xlabel("output throughput (tokens/s)  (higher is better)")
    return fig


def _bars(axes: Axes, group: BarGroup) -> None:
    axes.set_title(style.drawable(group.label, 90))
    ends = [v for bar in group.bars for v in (bar.value, *bar.replicates) if v is not None]
    top = max(ends, default=1.0) or 1.0
    for row, bar in enumerate(group.bars):
        _bar(axes, row, bar, top)
    name_rows(axes, [bar.variant for bar in group.bars])
    axes.set_xlim(0, top * 1.42)
    style.tick_text(axes.xaxis, units.format_count, 6)
    style.light_grid(axes, "x")


def _bar(axes: Axes, row: int, bar: Bar, top: float) -> None:
    if bar.value is None:
        axes.text(top * 0.01, row, bar.text or "not measured", va="center", color=style.MUTED)
        return
    tone = style.look(bar.place)
    axes.barh(row, bar.value, 0.62, facecolor=tone.color, edgecolor=style.PAPER, hatch=tone.hatch)
    for value in bar.replicates:
        axes.plot(
            value,
            row,
            marker="o",
            markersize=4.5,
            linestyle="none",
            markerfacecolor=style.PAPER,
            markeredgecolor=style.INK,
            markeredgewidth=0.9,
        )
    end = max((bar.value, *bar.replicates))
    axes.text(end + top * 0.02, row, bar.text or units.format_count(bar.value, 1), va="center")


def latency(groups: Sequence[LatencyGroup]) -> Figure:
    """TTFT and TPOT per workload: a filled mark at p50, an open one at p90, a line between."""
    rows = [max(len(group.ttft), 1) for group in groups]
    shared = len(groups) > 4
    tops = [
        max((v for each in of for v in (each.p50_s, each.p90_s) if v is not None), default=1.0)
        for of in (
            [each for group in groups for each in group.ttft],
            [each for group in groups for each in group.tpot],
        )
    ]
    fig, grid = style.figure(
        0.7 + sum(0.4 * count + 0.75 for count in rows),
        nrows=len(groups),
        ncols=2,
        height_ratios=[count + 0.6 for count in rows],
        squeeze=False,
        sharex="col" if shared else False,
    )
    for (left, right), group in zip(grid, groups, strict=True):
        left.set_title(style.drawable(group.label, 42))
        _spreads(left, group.ttft, tops[0] if shared else None)
        _spreads(right, group.tpot, tops[1] if shared else None)
        right.set_yticklabels([])
    grid[-1, 0].set_xlabel("time to first token, TTFT  (lower is better)")
    grid[-1, 1].set_xlabel("time per output token, TPOT  (lower is better)")
    return fig


def _spreads(axes: Axes, spreads: Sequence[Spread], shared_top: float | None) -> None:
    known = [v for s in spreads for v in (s.p50_s, s.p90_s) if v is not None]
    top = shared_top or max(known, default=1.0) or 1.0
    for row, spread in enumerate(spreads):
        _spread(axes, row, spread)
    name_rows(axes, [spread.variant for spread in spreads])
    axes.set_xlim(0, top * 1.3)
    style.tick_text(axes.xaxis, tick_duration, 4)
    style.light_grid(axes, "x")


def _spread(axes: Axes, row: int, spread: Spread) -> None:
    tone = style.look(spread.place)
    if spread.p50_s is None:
        axes.text(0, row, " not measured", va="center", color=style.MUTED)
        return
    if spread.p90_s is not None:
        axes.plot([spread.p50_s, spread.p90_s], [row, row], color=tone.color, linewidth=2)
        mark(axes, spread.place, spread.p90_s, row, size=8, hollow=True)
    mark(axes, spread.place, spread.p50_s, row, size=8)
    last = spread.p90_s if spread.p90_s is not None else spread.p50_s
    axes.annotate(
        units.format_duration(last),
        (last, row),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
    )
