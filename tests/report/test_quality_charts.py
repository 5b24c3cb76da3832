from __future__ import annotations

import pytest

from harness.report import style
from harness.report.charts.quality import HeatMap, Line, by_position, needles

MAP = HeatMap(
    label="fp8",
    task="needle",
    kind="one needle",
    contexts=(512, 2048),
    depths=(0.05, 0.95),
    shares=((1.0, None), (0.0, 0.5)),
    texts=(("1/1", ""), ("0/1", "1/2")),
)


def test_depths_and_lengths_are_written_as_on_the_rest_of_the_page() -> None:
    with style.drawing():
        (axes,) = needles([MAP], 1).axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["5 %", "95 %"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["512", "2,048"]


def test_a_cell_that_was_not_asked_is_hatched_and_one_without_a_find_is_white() -> None:
    with style.drawing():
        (axes,) = needles([MAP], 1).axes
    found, unasked, nothing, half = axes.patches
    assert unasked.get_hatch() == "////"
    assert not found.get_hatch()
    assert nothing.get_facecolor()[:3] == (1.0, 1.0, 1.0)
    # Half way from white (255) to the blue's red channel (0): 127.5, rounded to even.
    assert found.get_facecolor()[0] == 0.0
    assert half.get_facecolor()[0] == pytest.approx(128 / 255)


def test_divergence_begins_at_zero_and_the_floor_is_grey() -> None:
    lines = (
        Line("fp16 again", 0, is_floor=True, positions=(10.0, 20.0), values=(0.001, 0.002)),
        Line("fp8", 1, is_floor=False, positions=(10.0, 20.0), values=(0.01, 0.02)),
    )
    with style.drawing():
        figure = by_position(lines)
        figure.draw_without_rendering()
    (axes,) = figure.axes
    assert axes.get_ylim()[0] == 0
    assert [line.get_color() for line in axes.lines] == [style.MUTED, style.look(1).color]
