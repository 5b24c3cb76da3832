"""The charts of answer quality: divergence along the context, needles found by length and depth.

Each is a function of plain values. Not covered: titles and captions (``quality``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import units
from harness.report import style
from harness.report.charts.parts import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: More heat maps than these in a row can't be read.
MAX_COLUMNS = 4
_NONE_FOUND, _ALL_FOUND = "#ffffff", "#0072b2"


@dataclass(frozen=True, slots=True)
class Line:
    """One server's divergence by position: the middle of each stretch, and its mean in nats."""

    label: str
    place: int
    is_floor: bool
    positions: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Needles of one kind and server: shares by depth (rows) and context; None unasked."""

    label: str
    task: str
    kind: str
    contexts: tuple[int, ...]
    depths: tuple[float, ...]
    shares: tuple[tuple[float | None, ...], ...]
    texts: tuple[tuple[str, ...], ...]


def by_position(lines: Sequence[Line]) -> Figure:
    """Mean divergence along the prompt; the noise floor is the grey line."""
    fig, axes = style.figure(3.2)
    for line in lines:
        look = style.look(line.place)
        axes.plot(
            line.positions,
            line.values,
            label=style.drawable(line.label),
            color=style.MUTED if line.is_floor else look.color,
            linestyle=(0, (2, 2)) if line.is_floor else look.dash,
            marker="x" if line.is_floor else look.marker,
            markersize=5,
            linewidth=1.8,
        )
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("position in prompt and answer (tokens)")
    axes.set_ylabel("mean KL (nats per token)")
    style.tick_text(axes.xaxis, units.format_count, 8)
    style.tick_text(axes.yaxis, units.format_significant)
    style.light_grid(axes, "y")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(4, len(lines)))
    return fig


def needles(maps: Sequence[HeatMap], servers: int) -> Figure:
    """A heat map per server (columns) and kind of needle (rows), figures written into the cells."""
    columns = servers if servers <= MAX_COLUMNS else min(MAX_COLUMNS - 1, len(maps))
    rows = -(-len(maps) // columns)
    fig, grid = style.figure(0.6 + 2.2 * rows, nrows=rows, ncols=columns, squeeze=False)
    places = [axes for row in grid for axes in row]
    for axes, one in zip(places, maps, strict=False):
        _heat(axes, one)
    for axes in places[len(maps) :]:
        axes.set_visible(False)
    return fig


def _heat(axes: Axes, one: HeatMap) -> None:
    from matplotlib.patches import Rectangle

    for row, shares in enumerate(one.shares):
        for column, share in enumerate(shares):
            axes.add_patch(
                Rectangle(
                    (column, row),
                    1,
                    1,
                    facecolor=_tone(share),
                    edgecolor=style.MUTED,
                    linewidth=0.6,
                    hatch="" if share is not None else "////",
                )
            )
            axes.text(
                column + 0.5,
                row + 0.5,
                one.texts[row][column],
                ha="center",
                va="center",
                fontsize=8,
                color="#ffffff" if share is not None and share > 0.55 else "#1f2329",
            )
    axes.set_xlim(0, len(one.contexts))
    axes.set_ylim(len(one.depths), 0)
    contexts, depths = map(units.format_count, one.contexts), map(percent, one.depths)
    axes.set_xticks([n + 0.5 for n in range(len(one.contexts))], list(contexts))
    axes.set_yticks([n + 0.5 for n in range(len(one.depths))], list(depths))
    axes.tick_params(length=0)
    axes.set_title(f"{style.drawable(one.label, 20)}\n{one.kind}", fontsize=9)
    axes.set_xlabel("context (tokens)")
    axes.set_ylabel("depth")


def _tone(share: float | None) -> str:
    """From white (nothing found) to blue (all found)."""
    if share is None:
        return "#eceff2"
    ends = zip(_channels(_NONE_FOUND), _channels(_ALL_FOUND), strict=True)
    return "#" + "".join(f"{round(low + (high - low) * share):02x}" for low, high in ends)


def _channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
