"""The section on eviction: what it says of a planted run, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace

from harness.analysis import eviction
from harness.analysis.compare import analyse
from harness.report import strategy_eviction, style
from tests.analysis.test_eviction import planted
from tests.records import bench


def test_blocks_are_told_beside_their_prediction() -> None:
    analysis, records = planted(8 / 79)
    record, _ = bench(repeats=1)
    section = strategy_eviction.section(record, records, analysis)
    assert section is not None
    assert "fp8 holds at most 4 blocks (predicted 5)" in section.lead.replace("4.0", "4")
    (grid,) = section.grids
    assert [row[:3] for row in grid.rows] == [("fp16", "—", "—"), ("fp8", "4", "256")]
    assert [chart.name for chart in section.charts] == ["strategy-eviction"]


def test_with_quality_measured_the_trade_off_is_drawn(monkeypatch) -> None:
    analysis, records = planted(8 / 79)
    priced = tuple(
        replace(each, perplexity=12.0 * ratio, perplexity_ratio=ratio)
        for each, ratio in zip(
            eviction.evictions(analysis.trials, records, None), (1.0, 1.25), strict=True
        )
    )
    monkeypatch.setattr(strategy_eviction, "evictions", lambda *_given: priced)
    section = strategy_eviction.section(bench(repeats=1)[0], records, analysis)
    assert section is not None
    assert "at 1.25× the perplexity of full attention" in section.lead
    chart = section.charts[0]
    assert chart.name == "strategy-eviction-trade-off"
    with style.drawing():
        figure = chart.draw()
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["fp16", "fp8"]


def test_a_run_without_eviction_gets_no_section() -> None:
    record, trials = bench(repeats=1)
    assert strategy_eviction.section(record, trials, analyse(record, trials)) is None
