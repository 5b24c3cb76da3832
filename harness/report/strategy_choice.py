"""The section that sets all strategies of one run side by side (the chapter's "Choosing").

Method: the rows of the scoreboard, for a run that holds several different strategies on servers.
Not covered: several runs in one table (``kvbench report --scoreboard``).
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.results import Analysis
from harness.analysis.scoreboard import METRICS, Scoreboard, ScoreRow, scoreboard
from harness.record import BenchRecord, TrialRecord
from harness.report.scoreboard_text import BETTER, HEADS, cell_text, chart, served
from harness.report.section_parts import Grid, Section

#: Fewer families of strategies than these are what the run's own section compares.
MIN_KINDS = 3


def section(
    bench: BenchRecord, _records: Sequence[TrialRecord], analysis: Analysis
) -> Section | None:
    """Every strategy of the run beside the others; None where there are too few to choose from."""
    if not analysis.headline.trials_sealed:
        return None
    board = scoreboard([(bench, analysis)])
    rows = served(board)
    if len({row.family for row in rows}) < MIN_KINDS:
        return None
    picture = chart(board, "strategies")
    return Section(
        anchor="strategies",
        title="Choosing a strategy",
        lead=f"{picture.title}.",
        claims=("C15",),
        theory=(
            "Strategies that store fewer bytes per token, fewer tokens, or the same tokens once, "
            "let more requests run at once; each of them is predicted in its row of the tables."
        ),
        measured=board.recommendation,
        grids=(_grid(rows, board),),
        charts=(picture,),
        opens=True,
        keeps_points=True,
        first=True,
        not_covered="Strategies together: each is held against the baseline alone.",
    )


def _grid(rows: Sequence[ScoreRow], board: Scoreboard) -> Grid:
    return Grid(
        f"Ratios to {rows[0].baseline} on {board.device}; memory saving is baseline over variant",
        ("strategy", *(f"{HEADS[metric]} ({BETTER[metric]})" for metric in METRICS), "effort"),
        tuple(
            (row.strategy, *(_told(row, metric) for metric in METRICS), row.effort) for row in rows
        ),
    )


def _told(row: ScoreRow, metric: str) -> str:
    told = cell_text(row.cells[metric])
    return f"{told.value}, {told.stamp}" if row.cells[metric].value is not None else told.stamp
