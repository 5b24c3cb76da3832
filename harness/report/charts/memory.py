"""Memory: granted against predicted, in use at the peak, and where the server's memory lies.

Not covered: the pool over time (``over_time``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from harness import units
from harness.report import style
from harness.report.charts.parts import (
    MAX_MARKS,
    error_of,
    mark,
    name_rows,
    nothing,
    signed,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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

    label: str
    place: int
    predicted: float | None
    found: float | None


#: Points by which a mark around another is larger; of a label's line; of the lowest axis.
_RING, _LINE_PT, _AXIS_PT = 7, 10.7, 150

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


def memory(points: Sequence[MemoryPoint]) -> Figure:
    """Granted against predicted: capacity on the identity line, and bytes per token as bars.

    With more variants than marks can be told apart, capacity too is drawn as bars.
    """
    # What is neither predicted nor granted has nothing to draw.
    points = [point for point in points if _is_known(point)] or points
    fig, (left, right) = style.figure(
        max(3.1, 1.3 + 0.55 * len(points)), ncols=2, width_ratios=[1.05, 1]
    )
    if len(points) <= MAX_MARKS:
        _identity(left, points)
    else:
        left.set_title("KV capacity (tokens)")
        left.set_xlabel("tokens (higher is better)")
        capacity = [Pair(p.variant, p.place, p.predicted_tokens, p.granted_tokens) for p in points]
        paired_bars(left, capacity, errors=True)
        style.tick_text(left.xaxis, units.format_count, 4)
    right.set_title("KV bytes per token")
    right.set_xlabel("bytes per token (lower is better)")
    sizes = [
        Pair(p.variant, p.place, p.predicted_bytes_per_token, p.granted_bytes_per_token)
        for p in points
    ]
    paired_bars(right, sizes)
    style.tick_text(right.xaxis, units.format_count, 4)
    return fig


def _is_known(point: MemoryPoint) -> bool:
    figures = (
        point.predicted_tokens,
        point.granted_tokens,
        point.predicted_bytes_per_token,
        point.granted_bytes_per_token,
    )
    return any(figure is not None for figure in figures)


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
        nothing(axes, "no prediction or no granted capacity is known")
        return
    spots = _by_spot(known)
    highest = max(max(predicted, granted) for _, predicted, granted in known)
    top = highest * _headroom(max(map(len, spots.values())))
    axes.plot([0, top], [0, top], color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)))
    _name_the_line(axes, top, [predicted for _, predicted, _ in known])
    for point, predicted, granted in reversed(known):
        # The first of a spot lies on top, filled; each other one is a ring around it.
        ring = spots[predicted, granted].index(point.variant)
        size = 9 + _RING * ring
        mark(axes, point.place, predicted, granted, size=size, hollow=ring > 0)
    for number, (spot, names) in enumerate(spots.items()):
        _label_spot(axes, spot, names, above=number % 2 == 0)
    axes.set_xlim(0, top)
    axes.set_ylim(0, top)
    style.tick_text(axes.xaxis, units.format_count, 4)
    style.tick_text(axes.yaxis, units.format_count, 4)
    style.light_grid(axes, "both")


def _headroom(names: int) -> float:
    """How far above the highest mark the axis goes, so that its label stays below the title."""
    lines = names + 2
    share = (_LINE_PT * lines + _RING) / _AXIS_PT
    return max(1.3, 1 / (1 - min(share, 0.6)))


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
            signed(error_of(predicted, granted)),
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


def paired_bars(
    axes: Axes,
    pairs: Sequence[Pair],
    *,
    words: tuple[str, str] = ("predicted", "granted"),
    render: Callable[[float | None], str] = units.format_count,
    errors: bool = False,
    room: float = 1.6,
) -> None:
    """Per variant a dashed outline (predicted) above a filled bar (what was found).

    ``room`` is how far beyond the longest bar the axis goes, for the words behind it.
    """
    top = max((v for p in pairs for v in (p.predicted, p.found) if v is not None), default=1.0)
    for row, pair in enumerate(pairs):
        if pair.predicted is not None:
            _outline(axes, row - 0.2, pair.predicted)
        _end_text(axes, row - 0.2, pair.predicted, top, render, words[0])
        if pair.found is not None:
            _filled(axes, row + 0.2, pair.found, style.look(pair.place))
        known = errors and pair.found is not None
        error = f", {signed(error_of(pair.predicted, pair.found))}" if known else ""
        _end_text(axes, row + 0.2, pair.found, top, render, words[1] + error)
    name_rows(axes, [pair.label for pair in pairs])
    axes.set_xlim(0, top * (1.9 if errors else room) or 1.0)
    style.light_grid(axes, "x")


def _outline(axes: Axes, row: float, value: float) -> None:
    axes.barh(row, value, 0.34, facecolor="none", edgecolor=style.MUTED, linestyle="--")


def _filled(axes: Axes, row: float, value: float, tone: style.Look) -> None:
    axes.barh(row, value, 0.34, facecolor=tone.color, edgecolor=style.PAPER, hatch=tone.hatch)


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
        paired_bars(axes, pairs, words=words, render=units.format_bytes, errors=True)
        style.byte_ticks(axes.xaxis, axes.get_xlim()[1])
    grid[-1, 0].set_xlabel("KV memory in use at the peak")
    return fig


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
    name_rows(axes, [stack.variant for stack in stacks])
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
