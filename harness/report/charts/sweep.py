"""Throughput and TTFT over concurrency, the device's best, and where the pool is full by theory.

Not covered: which loads make a sweep and what a title claims (``sweeps``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import units
from harness.report import style
from harness.report.charts.parts import ceiling_line, tick_duration, with_ceiling

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class SweepLine:
    """One variant over concurrency: values at each, and how many requests its pool holds."""

    variant: str
    place: int
    concurrency: tuple[int, ...]
    output_throughput: tuple[float | None, ...]
    ttft_p50_s: tuple[float | None, ...]
    capacity_concurrency: float | None = None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The roofline over concurrency: no more tokens per second, no earlier first token."""

    concurrency: tuple[int, ...] = ()
    output_throughput: tuple[float, ...] = ()
    ttft_s: tuple[float, ...] = ()


def sweep(lines: Sequence[SweepLine], ceiling: Ceiling | None = None) -> Figure:
    """Throughput and TTFT against concurrency; a vertical line where a pool is full."""
    fig, (left, right) = style.figure(3.5, ncols=2)
    for line in lines:
        _line(left, line, line.output_throughput, above=False)
        _line(right, line, line.ttft_p50_s, above=True)
    left.set_ylabel("output throughput (tokens/s)\n(higher is better)")
    right.set_ylabel("TTFT p50\n(lower is better)")
    style.tick_text(left.yaxis, units.format_count)
    style.tick_text(right.yaxis, tick_duration)
    bound = ceiling or Ceiling()
    rates = [line.output_throughput for line in lines]
    waits = [line.ttft_p50_s for line in lines]
    for axes, seen, limit in (
        (left, rates, bound.output_throughput),
        (right, waits, bound.ttft_s),
    ):
        axes.set_xlabel("requests in flight (concurrency)")
        axes.set_ylim(0, _top(seen, limit))
        axes.set_xlim(left=0)
        style.tick_text(axes.xaxis, units.format_count)
        style.light_grid(axes, "both")
    if bound.output_throughput:
        most = units.format_rate(bound.output_throughput[-1], "tok/s")
        ceiling_line(left, bound.concurrency, bound.output_throughput, f"roofline, to {most}")
    if bound.ttft_s:
        least = units.format_duration(bound.ttft_s[-1])
        ceiling_line(right, bound.concurrency, bound.ttft_s, f"roofline {least}")
    names, labels = left.get_legend_handles_labels()
    fig.legend(names, labels, loc="outside lower center", ncols=max(1, min(4, len(labels))))
    return fig


def _top(seen: Sequence[Sequence[float | None]], limit: Sequence[float]) -> float:
    measured = max((y for values in seen for y in values if y is not None), default=0.0) or 1.0
    return with_ceiling(measured, limit) * 1.15


def _line(axes: Axes, line: SweepLine, values: Sequence[float | None], *, above: bool) -> None:
    tone = style.look(line.place)
    known = [(x, y) for x, y in zip(line.concurrency, values, strict=True) if y is not None]
    if known:
        axes.plot(
            *zip(*known, strict=True),
            color=tone.color,
            marker=tone.marker,
            linestyle=tone.dash,
            linewidth=1.7,
            markersize=6,
            label=style.drawable(line.variant),
        )
    fits = line.capacity_concurrency
    if fits is not None and fits <= max(line.concurrency):
        axes.axvline(fits, color=tone.color, linewidth=1, linestyle=":")
        axes.annotate(
            f"pool full by theory: {units.format_count(fits, 1)}",
            (fits, 0.97 if above else 0.03),
            xycoords=("data", "axes fraction"),
            xytext=(-2, 0),
            textcoords="offset points",
            fontsize=7.5,
            rotation=90,
            ha="right",
            va="top" if above else "bottom",
            color=style.MUTED,
        )
