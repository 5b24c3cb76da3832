from __future__ import annotations

from harness.report import style
from harness.report.charts.run_ratios import RatioMark, RatioPanel, run_ratios

SURE = RatioMark("B: fp8", 1, 1.2, 1.1, 1.3)
LONE = RatioMark("C: fp8", 2, 1.1, None, None)
GRANTED = RatioMark("B: fp16", 1, 2.0, None, None, exact=True)


def test_a_single_observation_is_hollow_and_what_is_exact_is_not() -> None:
    with style.drawing():
        (axes,) = run_ratios([RatioPanel("TTFT p50", (SURE, LONE, GRANTED))]).axes
    # The line of no change, an interval and its mark, and two marks without one.
    one, interval, sure, lone, granted = axes.lines
    assert list(one.get_xdata()) == [1.0, 1.0]
    assert list(interval.get_xdata()) == [1.1, 1.3]
    assert sure.get_markerfacecolor() == granted.get_markerfacecolor() == style.look(1).color
    assert lone.get_markerfacecolor() == style.PAPER


def test_little_is_not_blown_up_and_each_figure_has_a_panel() -> None:
    near = RatioMark("B: fp8 漢", 1, 1.001, 1.0, 1.002)
    with style.drawing():
        figure = run_ratios([RatioPanel("a", (near,)), RatioPanel("b", (SURE,))])
        figure.draw_without_rendering()
    first, second = figure.axes
    # From 0.95 to 1.05 at least, and 4 % of that 0.1 as room on either side.
    assert [round(end, 6) for end in first.get_xlim()] == [0.946, 1.054]
    assert second.get_title(loc="left") == "b"
    assert [tick.get_text() for tick in first.get_yticklabels()] == ["B: fp8 □"]
    assert all(tick.get_text().endswith("×") for tick in second.get_xticklabels())
