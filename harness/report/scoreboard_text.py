"""Strategies as figures side by side: each cell in words, the picture, who gains most.

Method: a ratio is written with its interval and its stamp; a cell without a figure is a dash and
says why. A title names the largest gains that were shown, of strategies whose answers held. Not
covered: how a cell came about (``analysis.scoreboard``), pages and terminals (``scoreboard``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness import units
from harness.analysis.scoreboard import METRICS, Scoreboard, ScoreCell, ScoreRow
from harness.report import charts
from harness.report.charts import Chart
from harness.report.charts.scores import MAX_ROWS

HEADS = {
    "memory": "memory saving",
    "capacity": "capacity",
    "throughput": "throughput",
    "ttft": "TTFT p50",
    "quality": "perplexity of texts",
}
BETTER = {
    "memory": "higher is better",
    "capacity": "higher is better",
    "throughput": "higher is better",
    "ttft": "lower is better",
    "quality": "1 is unchanged, higher is worse",
}


@dataclass(frozen=True, slots=True)
class ScoreCellText:
    """A cell as it is read: the figure, its stamp, what is to be known of it."""

    value: str
    stamp: str
    note: str


def cell_text(cell: ScoreCell) -> ScoreCellText:
    """``1.25× [1.16, 1.35]`` with its stamp; without a figure a dash and the reason."""
    note = " ".join((cell.note or "").split())
    if cell.value is None:
        return ScoreCellText(units.DASH, cell.stamp, note)
    value = units.format_ratio_range(cell.value, cell.low, cell.high)
    doubts = [note] if note else []
    if cell.shown is False:
        doubts.insert(0, "no difference shown")
    if cell.judgement == "suspect":
        doubts.insert(0, "suspect")
    return ScoreCellText(value, cell.stamp, "; ".join(doubts))


def _title(board: Scoreboard) -> str:
    """Who gains most, among those whose gain was shown and whose answers held."""
    rows = served(board)
    broken = sum(row.standing == "broken" for row in rows)
    sound = [row for row in rows if row.standing != "broken"]
    best = [
        f"most {metric} with {_named(row)}, {cell_text(row.cells[metric]).value}"
        for metric in ("capacity", "throughput")
        if (row := _best(sound, metric)) is not None
    ]
    count = f"{units.counted(len(rows), 'strategy', 'strategies')} on {board.device}"
    told = [*best, *([f"{broken} failed the text gate"] if broken else [])]
    return f"{count}: {'; '.join(told)}" if told else f"{count}: no gain was shown"


def _named(row: ScoreRow) -> str:
    """A strategy, with what its answers can't be known from."""
    unknown = row.standing == "random weights"
    return f"{row.strategy} (random weights)" if unknown else row.strategy


def _best(rows: Sequence[ScoreRow], metric: str) -> ScoreRow | None:
    gains = [
        (value, row)
        for row in rows
        if row.cells[metric].shown
        and (value := row.cells[metric].value) is not None
        and value > 1.0
        and row.cells[metric].judgement != "invalid"
    ]
    return max(gains, key=lambda gain: gain[0], default=(None, None))[1]


def served(board: Scoreboard) -> list[ScoreRow]:
    """The strategies that a server ran."""
    return [row for row in board.rows if row.engine == "vllm"]


def _alt(board: Scoreboard) -> str:
    lines = []
    for row in served(board):
        told = ", ".join(
            f"{HEADS[metric]} {cell_text(row.cells[metric]).value} {row.cells[metric].stamp}"
            for metric in METRICS
        )
        lines.append(f"{row.strategy}: {told}")
    return "; ".join(lines)


def chart(board: Scoreboard, name: str = "scoreboard") -> Chart:
    """The servers' strategies as small multiples."""
    rows = served(board)
    panels = [
        charts.ScorePanel(
            HEADS[metric], BETTER[metric], tuple(_score(r.cells[metric]) for r in rows)
        )
        for metric in METRICS
    ]
    rest = len(rows) - MAX_ROWS
    more = units.counted(rest, "more strategy is", "more strategies are")
    return Chart(
        name,
        _title(board),
        "Each panel is one figure, each row a strategy against its own run's baseline (the dotted "
        "line, 1×); lines are 95 % intervals; the axes are logarithmic. Filled marks are measured, "
        "open ones emulated or modelled; where there is no figure its stamp stands instead. Below "
        "each panel stands which direction is better."
        + (f" {more} in the table." if rest > 0 else ""),
        _alt(board),
        lambda: charts.scores([row.strategy for row in rows], panels),
    )


def _score(cell: ScoreCell) -> charts.Score:
    return charts.Score(cell.value, cell.stamp, cell.low, cell.high)
