"""The charts of a report: each a function of plain values, each answering one question.

* ``memory``: does the engine grant the KV memory that theory predicts?
* ``throughput``: how many output tokens per second, with every replicate shown?
* ``latency``: how long does a user wait, typically (p50) and on a bad day (p90)?
* ``ecdf``: what share of the requests waited at most how long?
* ``occupancy``: how full was the KV pool while requests ran, waited and were preempted?
* ``in_use``: does what is stored at the peak match what the requests in flight should hold?
* ``ledger``: where does the server's memory go?
* ``sweep``: what happens as concurrency grows?

Axes start at zero wherever lengths are compared. Not covered: which finding a title states and
what a caption says, which ``findings`` decides from the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from harness import units
from harness.report import style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: More columns than these can't be read side by side.
MAX_COLUMNS = 3
#: More labelled marks than these overlap on the identity line.
MAX_MARKS = 4
#: Where the longest latency is so many times the median, a linear axis shows an edge alone.
LONG_TAIL = 12.0


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart to be drawn: ``alt`` says in words what its picture shows."""

    name: str
    title: str
    caption: str
    alt: str
    draw: Callable[[], Figure]


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """KV memory of one variant: what theory predicts, what the engine granted."""

    variant: str
    place: int
    predicted_tokens: float | None
    granted_tokens: float | None
    predicted_bytes_per_token: float | None
    granted_bytes_per_token: float | None


@dataclass(frozen=True, slots=True)
class Pair:
    """One variant's figure: what theory says, and what was granted or measured."""

    variant: str
    place: int
    predicted: float | None
    found: float | None


@dataclass(frozen=True, slots=True)
class Bar:
    """One variant's figure: the mean, its interval if there is one, and every replicate."""

    variant: str
    place: int
    value: float | None
    low: float | None = None
    high: float | None = None
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
    """TTFT and TPOT of every variant under one workload, and the objectives if any are set."""

    label: str
    ttft: tuple[Spread, ...]
    tpot: tuple[Spread, ...]
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    """One variant's cumulative distribution: at most ``values_s[i]`` in ``shares[i]``."""

    variant: str
    place: int
    values_s: tuple[float, ...]
    shares: tuple[float, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """One trial on its clock: seconds since the measured load began.

    ``kv_used``, the theory band and ``pool`` are in tokens where the pool's size is known
    (``in_tokens``), else fractions of it and ``pool`` is 1.
    """

    variant: str
    place: int
    times_s: tuple[float, ...]
    kv_used: tuple[float, ...]
    running: tuple[float, ...]
    waiting: tuple[float, ...]
    pool: float
    in_tokens: bool
    preempted_at_s: tuple[float, ...] = ()
    theory_times_s: tuple[float, ...] = ()
    theory_low: tuple[float, ...] = ()
    theory_high: tuple[float, ...] = ()


#: What the parts of a memory ledger are called on the page, and the fill of each.
PART_NAMES = {
    "weights": "weights",
    "kv_pool": "KV pool",
    "activation_and_graphs": "activations and graphs",
    "other": "other",
}
_PART_LOOKS = {"weights": 0, "kv_pool": 5, "activation_and_graphs": 2, "other": 3}


@dataclass(frozen=True, slots=True)
class Stack:
    """Where one variant's memory lies; sizes in bytes, unknown ones are left out."""

    variant: str
    parts: tuple[tuple[str, float | None], ...]
    remainder_bytes: float | None
    total_bytes: float | None


@dataclass(frozen=True, slots=True)
class SweepLine:
    """One variant over concurrency: values at each, with intervals where there are any."""

    variant: str
    place: int
    concurrency: tuple[int, ...]
    output_throughput: tuple[float | None, ...]
    ttft_p50_s: tuple[float | None, ...]
    capacity_concurrency: float | None = None


def memory(points: Sequence[MemoryPoint]) -> Figure:
    """Granted against predicted: capacity on the identity line, and bytes per token as bars.

    With more variants than marks can be told apart, capacity too is drawn as bars.
    """
    fig, (left, right) = style.figure(
        max(3.1, 1.3 + 0.55 * len(points)), ncols=2, width_ratios=[1.05, 1]
    )
    if len(points) <= MAX_MARKS:
        _identity(left, points)
    else:
        left.set_title("KV capacity (tokens)")
        left.set_xlabel("tokens  (higher is better)")
        capacity = [Pair(p.variant, p.place, p.predicted_tokens, p.granted_tokens) for p in points]
        _paired_bars(left, capacity, errors=True)
        style.tick_text(left.xaxis, units.format_count, 4)
    right.set_title("KV bytes per token")
    right.set_xlabel("bytes per token, all layers  (lower is better)")
    sizes = [
        Pair(p.variant, p.place, p.predicted_bytes_per_token, p.granted_bytes_per_token)
        for p in points
    ]
    _paired_bars(right, sizes)
    style.tick_text(right.xaxis, units.format_count, 4)
    return fig


def _identity(axes: Axes, points: Sequence[MemoryPoint]) -> None:
    known = [
        (p, p.predicted_tokens, p.granted_tokens)
        for p in points
        if p.predicted_tokens is not None and p.granted_tokens is not None
    ]
    axes.set_title("KV capacity (tokens)")
    axes.set_xlabel("predicted by theory")
    axes.set_ylabel("granted by the engine")
    if not known:
        _nothing(axes, "no prediction or no granted capacity is known")
        return
    top = max(max(predicted, granted) for _, predicted, granted in known) * 1.3
    axes.plot([0, top], [0, top], color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)))
    _name_the_line(axes, top, [predicted for _, predicted, _ in known])
    for point, predicted, granted in known:
        _mark(axes, point.place, predicted, granted, size=9)
    for number, (spot, names) in enumerate(_by_spot(known).items()):
        _label_spot(axes, spot, names, above=number % 2 == 0)
    axes.set_xlim(0, top)
    axes.set_ylim(0, top)
    style.tick_text(axes.xaxis, units.format_count, 4)
    style.tick_text(axes.yaxis, units.format_count, 4)
    style.light_grid(axes, "both")


def _name_the_line(axes: Axes, top: float, at: Sequence[float]) -> None:
    """Write along the identity line, below it, in the widest stretch without a mark."""
    ends = sorted([0.0, *at, top * 0.9])
    low, high = max(pairwise(ends), key=lambda pair: pair[1] - pair[0])
    axes.annotate(
        "as predicted",
        ((low + high) / 2, (low + high) / 2),
        xytext=(5, -5),
        textcoords="offset points",
        color=style.MUTED,
        fontsize=8.5,
        ha="center",
        va="top",
        rotation=45,
        rotation_mode="anchor",
        transform_rotates_text=True,
    )


def _by_spot(
    known: Sequence[tuple[MemoryPoint, float, float]],
) -> dict[tuple[float, float], list[str]]:
    """Variants that lie on the same spot share one label."""
    spots: dict[tuple[float, float], list[str]] = {}
    for point, predicted, granted in known:
        spots.setdefault((predicted, granted), []).append(point.variant)
    return spots


def _label_spot(
    axes: Axes, spot: tuple[float, float], names: Sequence[str], *, above: bool
) -> None:
    predicted, granted = spot
    text = "\n".join(
        [
            *(style.drawable(name, 18) for name in names),
            units.format_count(granted),
            _signed(_error(predicted, granted)),
        ]
    )
    axes.annotate(
        text,
        spot,
        xytext=(-9, 7) if above else (10, -7),
        textcoords="offset points",
        ha="right" if above else "left",
        va="bottom" if above else "top",
        fontsize=8.5,
        linespacing=1.25,
    )


def _signed(error: float | None) -> str:
    if error is None:
        return "error unknown"
    return f"error {'+' if error > 0 else ''}{units.format_percent(error)}"


def _paired_bars(
    axes: Axes,
    pairs: Sequence[Pair],
    *,
    words: tuple[str, str] = ("predicted", "granted"),
    render: Callable[[float | None], str] = units.format_count,
    errors: bool = False,
) -> None:
    """Per variant a dashed outline (predicted) above a filled bar (what was found)."""
    top = max((v for p in pairs for v in (p.predicted, p.found) if v is not None), default=1.0)
    for row, pair in enumerate(pairs):
        if pair.predicted is not None:
            _outline(axes, row - 0.2, pair.predicted)
        _end_text(axes, row - 0.2, pair.predicted, top, render, words[0])
        if pair.found is not None:
            _filled(axes, row + 0.2, pair.found, style.look(pair.place))
        error = f", {_signed(_error(pair.predicted, pair.found))}" if errors else ""
        _end_text(axes, row + 0.2, pair.found, top, render, words[1] + error)
    _name_rows(axes, [pair.variant for pair in pairs])
    axes.set_xlim(0, top * (1.9 if errors else 1.6) or 1.0)
    style.light_grid(axes, "x")


def _outline(axes: Axes, row: float, value: float) -> None:
    axes.barh(row, value, 0.34, facecolor="none", edgecolor=style.MUTED, linestyle="--")


def _filled(axes: Axes, row: float, value: float, tone: style.Look) -> None:
    axes.barh(row, value, 0.34, facecolor=tone.color, edgecolor=style.PAPER, hatch=tone.hatch)


def _error(predicted: float | None, granted: float | None) -> float | None:
    if not predicted or granted is None:
        return None
    return (granted - predicted) / predicted


def _end_text(
    axes: Axes,
    row: float,
    value: float | None,
    top: float,
    render: Callable[[float | None], str],
    word: str,
) -> None:
    text = f"{render(value)} {word}"
    axes.text((value or 0) + top * 0.02, row, text, va="center", fontsize=8.5)


def in_use(groups: Sequence[tuple[str, Sequence[Pair]]]) -> Figure:
    """Peak KV in use, measured beside what theory lets the requests in flight hold."""
    rows = [len(pairs) for _, pairs in groups]
    fig, grid = style.figure(
        0.7 + sum(0.62 * count + 0.55 for count in rows),
        nrows=len(groups),
        height_ratios=[count + 0.5 for count in rows],
        squeeze=False,
    )
    for axes, (label, pairs) in zip(grid[:, 0], groups, strict=True):
        axes.set_title(style.drawable(label, 90))
        words = ("by theory", "measured")
        _paired_bars(axes, pairs, words=words, render=units.format_bytes, errors=True)
        style.byte_ticks(axes.xaxis, axes.get_xlim()[1])
    grid[-1, 0].set_xlabel("KV memory in use at the peak")
    return fig


def throughput(groups: Sequence[BarGroup]) -> Figure:
    """Output throughput per workload: bars from zero, replicates as dots, intervals as lines."""
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
    ends = [
        v for bar in group.bars for v in (bar.value, bar.high, *bar.replicates) if v is not None
    ]
    top = max(ends, default=1.0) or 1.0
    for row, bar in enumerate(group.bars):
        _bar(axes, row, bar, top)
    _name_rows(axes, [bar.variant for bar in group.bars])
    axes.set_xlim(0, top * 1.42)
    style.tick_text(axes.xaxis, units.format_count, 6)
    style.light_grid(axes, "x")


def _bar(axes: Axes, row: int, bar: Bar, top: float) -> None:
    if bar.value is None:
        axes.text(top * 0.01, row, bar.text or "not measured", va="center", color=style.MUTED)
        return
    tone = style.look(bar.place)
    axes.barh(row, bar.value, 0.62, facecolor=tone.color, edgecolor=style.PAPER, hatch=tone.hatch)
    if bar.low is not None and bar.high is not None:
        axes.plot([bar.low, bar.high], [row, row], color=style.INK, linewidth=2.2)
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
    end = max(bar.value, bar.high or 0.0, *bar.replicates, 0.0)
    axes.text(end + top * 0.02, row, bar.text or units.format_count(bar.value, 1), va="center")


def latency(groups: Sequence[LatencyGroup]) -> Figure:
    """TTFT and TPOT per workload: a filled mark at p50, an open one at p90, a line between."""
    rows = [max(len(group.ttft), 1) for group in groups]
    fig, grid = style.figure(
        0.7 + sum(0.4 * count + 0.75 for count in rows),
        nrows=len(groups),
        ncols=2,
        height_ratios=[count + 0.6 for count in rows],
        squeeze=False,
        sharex="col" if len(groups) > 4 else False,
    )
    for (left, right), group in zip(grid, groups, strict=True):
        left.set_title(style.drawable(group.label, 42))
        _spreads(left, group.ttft, group.ttft_slo_s)
        _spreads(right, group.tpot, group.tpot_slo_s)
        right.set_yticklabels([])
    grid[-1, 0].set_xlabel("time to first token, TTFT  (lower is better)")
    grid[-1, 1].set_xlabel("time per output token, TPOT  (lower is better)")
    return fig


def _spreads(axes: Axes, spreads: Sequence[Spread], slo_s: float | None) -> None:
    known = [v for s in spreads for v in (s.p50_s, s.p90_s) if v is not None]
    top = max(known, default=1.0) or 1.0
    for row, spread in enumerate(spreads):
        _spread(axes, row, spread)
    if slo_s is not None and slo_s <= top * 1.25:
        axes.axvline(slo_s, color=style.INK, linewidth=1, linestyle=(0, (1, 2)))
        axes.text(slo_s, -0.72, " SLO", fontsize=8, va="center", ha="left", color=style.MUTED)
    _name_rows(axes, [spread.variant for spread in spreads])
    axes.set_xlim(0, top * 1.3)
    style.tick_text(axes.xaxis, _tick_duration, 4)
    style.light_grid(axes, "x")


def _tick_duration(seconds: float) -> str:
    """A round tick: ``500 ms``, ``10 s``."""
    return "0" if seconds == 0 else style.trimmed(units.format_duration(seconds))


def _spread(axes: Axes, row: int, spread: Spread) -> None:
    tone = style.look(spread.place)
    if spread.p50_s is None:
        axes.text(0, row, " not measured", va="center", color=style.MUTED)
        return
    if spread.p90_s is not None:
        axes.plot([spread.p50_s, spread.p90_s], [row, row], color=tone.color, linewidth=2)
        _mark(axes, spread.place, spread.p90_s, row, size=8, hollow=True)
    _mark(axes, spread.place, spread.p50_s, row, size=8)
    last = spread.p90_s if spread.p90_s is not None else spread.p50_s
    axes.annotate(
        units.format_duration(last),
        (last, row),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
    )


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
        style.tick_text(axes.yaxis, _percent, 5)
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
        axes.xaxis.set_major_formatter(lambda value, _: _tick_duration(value))
        axes.xaxis.minorticks_off()
        return
    axes.set_xlim(0, longest * 1.04)
    axes.set_xlabel("lower is better")
    style.tick_text(axes.xaxis, _tick_duration, 3)


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
    for column, line in enumerate(lines):
        _kv_over_time(grid[0, column], line, top)
        _queue_over_time(grid[1, column], line)
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
    style.tick_text(axes.yaxis, units.format_count if line.in_tokens else _percent, 5)
    style.light_grid(axes, "y")


def _percent(fraction: float) -> str:
    return units.format_percent(fraction, 0)


def _queue_over_time(axes: Axes, line: Timeline) -> None:
    axes.step(
        line.times_s,
        line.running,
        where="post",
        color=style.look(line.place).color,
        linewidth=1.6,
        label="running",
    )
    axes.step(
        line.times_s,
        line.waiting,
        where="post",
        color=style.INK,
        linewidth=1.2,
        linestyle=(0, (2, 1.5)),
        label="waiting",
    )
    axes.set_ylim(0, max(*line.running, *line.waiting, 1.0) * 1.25)
    style.tick_text(axes.yaxis, units.format_count, 4)
    digits = 0 if max(line.times_s) - min(line.times_s) > 5 else 1
    style.tick_text(axes.xaxis, lambda t: units.format_count(t, digits), 5)
    style.light_grid(axes, "y")


def ledger(stacks: Sequence[Stack]) -> Figure:
    """Memory once loaded, stacked by use; what is not itemised is the hatched end."""
    from matplotlib.patches import Patch

    fig, axes = style.figure(1.5 + 0.55 * len(stacks))
    names = [name for name in PART_NAMES if any(_size(stack, name) for stack in stacks)]
    for row, stack in enumerate(stacks):
        _stack(axes, row, stack, names)
    keys = [
        Patch(facecolor=look.color, hatch=look.hatch, edgecolor=style.PAPER, label=PART_NAMES[name])
        for name in names
        for look in [style.look(_PART_LOOKS[name])]
    ]
    keys.append(Patch(facecolor="none", edgecolor=style.MUTED, hatch="//", label="not itemised"))
    fig.legend(handles=keys, loc="outside lower center", ncols=len(keys))
    _name_rows(axes, [stack.variant for stack in stacks])
    axes.set_xlabel("memory once the server is healthy")
    axes.set_xlim(0, max(stack.total_bytes or 0.0 for stack in stacks) * 1.16 or 1.0)
    style.byte_ticks(axes.xaxis, max(stack.total_bytes or 0.0 for stack in stacks))
    style.light_grid(axes, "x")
    return fig


def _size(stack: Stack, name: str) -> float:
    return next((size or 0.0 for part, size in stack.parts if part == name), 0.0)


def _stack(axes: Axes, row: int, stack: Stack, names: Sequence[str]) -> None:
    left = 0.0
    for name in names:
        tone = style.look(_PART_LOOKS[name])
        axes.barh(
            row,
            _size(stack, name),
            0.6,
            left,
            facecolor=tone.color,
            edgecolor=style.PAPER,
            hatch=tone.hatch,
        )
        left += _size(stack, name)
    rest = stack.remainder_bytes
    if rest is not None and rest > 0:
        axes.barh(row, rest, 0.6, left, facecolor="none", edgecolor=style.MUTED, hatch="//")
        left += rest
    axes.annotate(
        units.format_bytes(stack.total_bytes),
        (left, row),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
    )


def sweep(lines: Sequence[SweepLine]) -> Figure:
    """Throughput and TTFT against concurrency; a vertical line where the pool is full."""
    fig, (left, right) = style.figure(3.4, ncols=2)
    for line in lines:
        _sweep_line(left, line, line.output_throughput)
        _sweep_line(right, line, line.ttft_p50_s)
    left.set_ylabel("output throughput (tokens/s)\n(higher is better)")
    right.set_ylabel("TTFT p50\n(lower is better)")
    style.tick_text(left.yaxis, units.format_count)
    style.tick_text(right.yaxis, _tick_duration)
    for axes in (left, right):
        axes.set_xlabel("requests in flight (concurrency)")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        style.tick_text(axes.xaxis, units.format_count)
        style.light_grid(axes, "both")
    left.legend(loc="best")
    return fig


def _sweep_line(axes: Axes, line: SweepLine, values: Sequence[float | None]) -> None:
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
    if line.capacity_concurrency is not None and line.capacity_concurrency <= max(line.concurrency):
        axes.axvline(line.capacity_concurrency, color=tone.color, linewidth=1, linestyle=":")


def _mark(axes: Axes, place: int, x: float, y: float, *, size: float, hollow: bool = False) -> None:
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


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [style.drawable(name, 24) for name in names])
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)


def _nothing(axes: Axes, why: str) -> None:
    axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes, color=style.MUTED)
    axes.set_xticks([])
    axes.set_yticks([])
