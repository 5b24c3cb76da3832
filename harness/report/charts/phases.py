"""What a request's time is spent on: waiting for a place, up to its first token, after it.

Not covered: how the parts are found (``analysis.phases``), and single requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import units
from harness.report import style
from harness.report.charts.parts import name_rows, tick_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch


@dataclass(frozen=True, slots=True)
class Parts:
    """The mean request of one row, in seconds; ``queued_s`` is a part of ``before_s``."""

    row: str
    before_s: float
    after_s: float
    queued_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    label: str
    look: int | None
    hatch: str


_QUEUED = _Part("waiting", None, "//")
_PREFILL = _Part("prefill, to the first token", 0, "")
_WHOLE = _Part("either, not told apart", 4, "xxxx")
_DECODE = _Part("decode", 5, "++++")


def phases(groups: Sequence[tuple[str, Sequence[Parts]]]) -> Figure:
    """Stacked bars, one panel per group and one row per variant (or load), all from zero."""
    rows = [len(parts) for _, parts in groups]
    fig, grid = style.figure(
        1.0 + sum(0.4 * count + 0.62 for count in rows),
        nrows=len(groups),
        height_ratios=[count + 0.6 for count in rows],
        squeeze=False,
    )
    for axes, (label, parts) in zip(grid[:, 0], groups, strict=True):
        _panel(axes, label, parts)
    grid[-1, 0].set_xlabel("time of the mean request  (lower is better)")
    used = {part for _, parts in groups for each in parts for part, _ in _split(each)}
    shown = [part for part in (_QUEUED, _PREFILL, _WHOLE, _DECODE) if part in used]
    fig.legend(handles=[_key(p) for p in shown], loc="outside lower center", ncols=len(shown))
    return fig


def _split(parts: Parts) -> tuple[tuple[_Part, float], ...]:
    if parts.queued_s is None:
        return (_WHOLE, parts.before_s), (_DECODE, parts.after_s)
    prefill = max(parts.before_s - parts.queued_s, 0.0)
    return (_QUEUED, parts.queued_s), (_PREFILL, prefill), (_DECODE, parts.after_s)


def _panel(axes: Axes, label: str, rows: Sequence[Parts]) -> None:
    axes.set_title(style.drawable(label, 90))
    top = max(each.before_s + each.after_s for each in rows) or 1.0
    for row, each in enumerate(rows):
        left = 0.0
        for part, length in _split(each):
            face, edge = _paint(part)
            axes.barh(row, length, 0.62, left, facecolor=face, edgecolor=edge, hatch=part.hatch)
            left += length
        first, whole = units.format_duration(each.before_s), units.format_duration(left)
        axes.text(left + top * 0.015, row, f"{first} of {whole}", va="center", fontsize=8.5)
    name_rows(axes, [each.row for each in rows])
    axes.set_xlim(0, top * 1.28)
    style.tick_text(axes.xaxis, tick_duration, 6)
    style.light_grid(axes, "x")


def _paint(part: _Part) -> tuple[str, str]:
    return (
        ("none", style.MUTED) if part.look is None else (style.look(part.look).color, style.PAPER)
    )


def _key(part: _Part) -> Patch:
    from matplotlib.patches import Patch

    face, edge = _paint(part)
    return Patch(facecolor=face, edgecolor=edge, hatch=part.hatch, label=part.label)
