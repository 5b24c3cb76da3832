from __future__ import annotations

from dataclasses import replace

from harness.analysis.scoreboard import Scoreboard, ScoreCell, scoreboard
from harness.report.scoreboard_text import cell_text, chart
from tests.analysis.test_scoreboard import fp8, pair


def board(**cells: ScoreCell) -> Scoreboard:
    """A run of one strategy with some of its cells replaced."""
    made = scoreboard([pair(*fp8())])
    (row,) = made.rows
    return replace(made, rows=(replace(row, cells={**row.cells, **cells}),))


def test_a_ratio_has_as_many_digits_as_tell_its_ends_apart() -> None:
    # 1.003 / 1.001 − 1 is 0.2 %, narrower than 2 %.
    assert cell_text(ScoreCell("measured", 1.002, 1.001, 1.003)).value == "1.002× [1.001, 1.003]"
    assert cell_text(ScoreCell("measured", 0.052, 0.05, 0.054)).value == "0.052× [0.050, 0.054]"
    assert cell_text(ScoreCell("measured", 2.0, 2.0, 2.0)).value == "2.00×"
    assert cell_text(ScoreCell("measured", 1.2, 0.0, 2.4)).value == "1.20× [0.00, 2.40]"


def test_the_title_names_the_largest_gain_that_was_shown_and_nothing_unknown() -> None:
    gone = ScoreCell("not measured", shown=True)
    gain = ScoreCell("measured", 1.3, 1.2, 1.4, shown=True)
    title = chart(board(capacity=gone, throughput=gain)).title
    assert title.endswith(": most throughput with KV dtype fp8, 1.30× [1.20, 1.40]")
    loss = ScoreCell("measured", 0.9, 0.8, 0.95, shown=True)
    assert chart(board(capacity=gone, throughput=loss)).title.endswith(": no gain was shown")
