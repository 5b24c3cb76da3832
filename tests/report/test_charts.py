from __future__ import annotations

import pytest

from harness.report import charts, style
from harness.report.charts.parts import with_ceiling


def texts(axes: object) -> list[str]:
    return [text.get_text() for text in axes.texts]  # type: ignore[attr-defined]


def test_bars_start_at_zero_and_are_as_long_as_their_values() -> None:
    group = charts.BarGroup(
        "load",
        (
            charts.Bar("fp16", 0, 80.0, replicates=(79.0, 80.0, 81.0), text="80.0 tok/s"),
            charts.Bar("fp8", 1, 100.0, text="100.0 tok/s   1.25×"),
        ),
    )
    with style.drawing():
        axes = charts.throughput([group]).axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 80.0), (0, 100.0)]
    assert axes.get_xlim()[0] == 0
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert sorted(float(dot.get_xdata()[0]) for dot in dots) == [79.0, 80.0, 81.0]


def test_a_figure_that_is_withheld_has_no_bar_but_says_so() -> None:
    group = charts.BarGroup("load", (charts.Bar("fp16", 0, None, text="withheld: invalid"),))
    with style.drawing():
        axes = charts.throughput([group]).axes[0]
    assert len(axes.patches) == 0
    assert texts(axes) == ["withheld: invalid"]


def test_capacity_lies_on_the_identity_line_with_its_error() -> None:
    points = [charts.MemoryPoint("fp16", 0, 5000, 4900, 23040, 23500)]
    with style.drawing():
        axes = charts.memory(points).axes[0]
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    assert (marks[0].get_xdata()[0], marks[0].get_ydata()[0]) == (5000, 4900)
    # (4900 − 5000) / 5000 = −2 %.
    assert any("error -2.0 %" in text for text in texts(axes))


def test_variants_with_the_same_pool_share_one_label() -> None:
    points = [
        charts.MemoryPoint(name, place, 5120, 5120, 23040, 23040)
        for place, name in enumerate(("a", "b", "c"))
    ]
    with style.drawing():
        axes = charts.memory(points).axes[0]
    assert sum("error" in text for text in texts(axes)) == 1
    assert any(text.startswith("a\nb\nc\n") for text in texts(axes))


def test_many_variants_are_drawn_as_bars_with_their_errors() -> None:
    points = [
        charts.MemoryPoint(f"v{place}", place, 1000.0, 1000.0 - place, 10, 10)
        for place in range(charts.MAX_MARKS + 1)
    ]
    with style.drawing():
        axes = charts.memory(points).axes[0]
    assert len(axes.patches) == 2 * len(points)
    assert any("error -0.4 %" in text for text in texts(axes))


def test_a_memory_chart_without_a_prediction_says_so() -> None:
    with style.drawing():
        fig = charts.memory([charts.MemoryPoint("x", 0, None, 5120, None, None)])
    assert any("no prediction" in text for text in texts(fig.axes[0]))


def test_latency_marks_p50_filled_and_p90_open() -> None:
    group = charts.LatencyGroup(
        "load", (charts.Spread("fp16", 0, 0.5, 0.9),), (charts.Spread("fp16", 0, None, None),)
    )
    with style.drawing():
        ttft, tpot = charts.latency([group]).axes
    marks = {float(m.get_xdata()[0]): m for m in ttft.lines if m.get_marker() == "o"}
    assert marks[0.5].get_markerfacecolor() == style.look(0).color
    assert marks[0.9].get_markerfacecolor() == style.PAPER
    assert texts(tpot) == [" not measured"]


def test_theory_is_an_outline_and_what_was_measured_a_filled_bar_with_its_error() -> None:
    pairs = [charts.Pair("fp16", 0, 100.0 * 2**20, 90.0 * 2**20)]
    with style.drawing():
        axes = charts.in_use([("load", pairs)]).axes[0]
    outline, filled = axes.patches
    assert outline.get_facecolor()[3] == 0
    assert outline.get_width() == 100.0 * 2**20
    assert filled.get_width() == 90.0 * 2**20
    assert "90.00 MiB measured, error -10.0 %" in texts(axes)


def test_a_long_tail_is_drawn_by_powers_of_ten_and_says_so() -> None:
    even = charts.Steps("fp16", 0, (0.1, 0.2, 0.3), (0.0, 0.5, 1.0), 2)
    tail = charts.Steps("fp16", 0, (0.01, 0.02, 0.02, 5.0), (0.0, 0.5, 0.9, 1.0), 9)
    with style.drawing():
        left, right = charts.ecdf([("TTFT", [even]), ("ITL", [tail])]).axes
    assert (left.get_xscale(), right.get_xscale()) == ("linear", "log")
    assert "log scale" in right.get_xlabel()
    assert left.get_xlim()[0] == 0


def test_the_ledger_leaves_its_remainder_visible() -> None:
    stack = charts.Stack("fp16", (("weights", 100.0), ("kv_pool", 50.0)), 30.0, 180.0)
    with style.drawing():
        axes = charts.ledger([stack]).axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [
        (0, 100.0),
        (100.0, 50.0),
        (150.0, 30.0),
    ]


def test_a_sweep_leaves_out_what_was_not_measured() -> None:
    line = charts.SweepLine("fp16", 0, (1, 4, 16), (10.0, None, 30.0), (0.1, 0.2, 0.3), 8.0)
    with style.drawing():
        left, right = charts.sweep([line]).axes
    assert list(left.lines[0].get_xdata()) == [1, 16]
    assert list(right.lines[0].get_xdata()) == [1, 4, 16]
    assert list(left.lines[1].get_xdata()) == [8.0, 8.0]


def test_a_near_bound_stretches_the_axis_and_a_far_one_does_not() -> None:
    assert with_ceiling(10.0, (4.0, 16.0)) == 16.0
    assert with_ceiling(10.0, (4.0, 16.1)) == 10.0
    assert with_ceiling(10.0, ()) == 10.0


@pytest.mark.parametrize("place", range(len(style.LOOKS)))
def test_every_variant_can_be_told_apart_without_colour(place: int) -> None:
    mine = style.look(place)
    others = [one for one in style.LOOKS if one is not mine]
    assert mine.marker not in {one.marker for one in others}
    assert mine.hatch not in {one.hatch for one in others}
    assert mine.dash not in {one.dash for one in others}


def test_loads_on_one_shared_axis_all_lie_inside_it() -> None:
    groups = [
        charts.LatencyGroup(
            f"load {n}",
            (charts.Spread("fp16", 0, 1.0, 9.0 if n == 0 else 2.0),),
            (charts.Spread("fp16", 0, 0.01, 0.02),),
        )
        for n in range(5)
    ]
    with style.drawing():
        axes = charts.latency(groups).axes
    assert all(panel.get_xlim()[1] > 9.0 for panel in axes[::2])


def test_strategies_stand_in_one_order_and_their_marks_tell_how_each_figure_came_about() -> None:
    panel = charts.ScorePanel(
        "throughput",
        "higher is better",
        (
            charts.Score(2.0, "measured", 1.5, 2.5),
            charts.Score(0.5, "emulated"),
            charts.Score(None, "skipped"),
            charts.Score(4.0, "modelled"),
        ),
    )
    with style.drawing():
        figure = charts.scores(["a", "b", "c", "d"], [panel, panel])
    for axes in figure.axes:
        marks = [line for line in axes.lines if line.get_marker() not in ("None", "")]
        assert [float(m.get_ydata()[0]) for m in marks] == [0.0, 1.0, 3.0]
        # Filled, an open circle, an open diamond.
        filled = [m.get_markerfacecolor() != style.PAPER for m in marks]
        assert (filled, [m.get_marker() for m in marks]) == ([True, False, False], ["o", "o", "D"])
        assert "skipped" in texts(axes)
        # A half and a double lie equally far from 1×.
        assert axes.get_xscale() == "log"
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["a", "b", "c", "d"]
    keys = [text.get_text() for text in figure.legends[0].get_texts()]
    assert keys == ["measured", "emulated", "modelled"]


def test_an_error_of_nothing_has_no_sign() -> None:
    pairs = [charts.Pair("a", 0, 100.0, 99.99), charts.Pair("b", 0, 100.0, None)]
    with style.drawing():
        axes = charts.in_use([("load", pairs)]).axes[0]
    # 99.99 / 100 − 1 = −0.01 %, which is written 0.0 %.
    assert any(text.endswith("measured, error 0.0 %") for text in texts(axes))
    assert any(text.endswith("— measured") for text in texts(axes))
