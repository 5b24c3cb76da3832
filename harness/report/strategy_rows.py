"""Cells and charts that several strategies' sections are made of: one home for each.

Not covered: what a section says of them (``strategy_memory``, ``strategy_serving``,
``strategy_eviction``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harness.analysis.results import Analysis
from harness.report.charts import Chart, Pair
from harness.report.charts.strategy import pairs
from harness.report.places import places
from harness.report.tables import ratio_text
from harness.units import DASH, Bytes, format_bytes, format_count


def throughput_text(analysis: Analysis, variant: str) -> str:
    """Output throughput of a variant under the first workload, with its ratio to the baseline."""
    first = analysis.comparisons[0] if analysis.comparisons else None
    cell = first.cell("output_throughput", variant) if first is not None else None
    if cell is None or cell.value is None:
        return DASH
    value = f"{format_count(cell.value, 1)} tok/s"
    return value if cell.is_baseline else f"{value}, {ratio_text(cell.ratio, cell.interval)}"


def blocks_text(blocks: float | None, block_bytes: Bytes) -> str:
    """``18 blocks, 12.66 MiB``; a dash where they are unknown."""
    if blocks is None:
        return DASH
    digits = 0 if float(blocks).is_integer() else 1
    return f"{format_count(blocks, digits)} blocks, {format_bytes(blocks * block_bytes)}"


def pair_chart(
    name: str,
    title: str,
    caption: str,
    given: Sequence[Pair],
    *,
    axis: str = "KV blocks per request",
    digits: int = 1,
) -> Chart:
    """Predicted outlines above measured bars, one pair of them per variant."""
    return Chart(
        name,
        title,
        caption,
        "; ".join(
            f"{pair.label}: {format_count(pair.predicted)} predicted, "
            f"{format_count(pair.found, digits)} measured"
            for pair in given
        ),
        lambda: pairs(axis, "blocks (lower is better)", given),
    )


class _Held(Protocol):
    """A variant, and the blocks that one of its requests holds by theory and as measured."""

    @property
    def variant(self) -> str: ...
    @property
    def predicted_blocks(self) -> float | None: ...
    @property
    def measured_blocks(self) -> float | None: ...


def blocks_held_chart(
    analysis: Analysis, found: Sequence[_Held], *, name: str, title: str
) -> Chart:
    """The most blocks that a request of each variant may hold, above the most that was seen."""
    given = [
        Pair(
            each.variant,
            places(analysis)[each.variant],
            each.predicted_blocks,
            each.measured_blocks,
        )
        for each in found
    ]
    return pair_chart(
        name,
        title,
        "Dashed outlines are the most that a request may hold by theory, bars the most that was "
        "seen per running request.",
        given,
    )
