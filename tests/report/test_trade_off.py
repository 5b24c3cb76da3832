from __future__ import annotations

from harness.report import style
from harness.report.charts.trade_off import Level, Mark, Trail, draw
from harness.units import MIB

MARKS = (Mark("window", 1, 2 * MIB, 24.0), Mark("snapkv", 2, 1.5 * MIB, 21.0))
TRAILS = (Trail("knorm", ((3.0 * MIB, 22.0), (1.0 * MIB, 30.0))),)


def test_servers_marks_are_filled_and_another_engines_hollow_and_joined() -> None:
    with style.drawing():
        figure = draw(MARKS, TRAILS, (Level("full", 20.0, 4 * MIB),))
    (axes,) = figure.axes
    level, upright, window, snapkv, knorm = axes.lines
    assert list(level.get_ydata()) == [20.0, 20.0]
    assert list(upright.get_xdata()) == [4 * MIB, 4 * MIB]
    assert (list(window.get_xdata()), list(window.get_ydata())) == ([2 * MIB], [24.0])
    assert window.get_marker() != snapkv.get_marker()
    assert knorm.get_markerfacecolor() == "none"
    assert list(knorm.get_ydata()) == [22.0, 30.0]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["full", "window", "snapkv", "knorm"]


def test_memory_begins_at_zero_and_everything_lies_inside() -> None:
    with style.drawing():
        (axes,) = draw(MARKS, TRAILS, (Level("full", 20.0, 4 * MIB),)).axes
    left, right = axes.get_xlim()
    low, high = axes.get_ylim()
    # The widest is full attention's 4 MiB; perplexities run from 20 to 30, 8 % of that is 0.8.
    assert left == 0
    assert right > 4 * MIB
    assert (low, high) == (20.0 - 0.8, 30.0 + 0.8)


def test_a_level_of_unknown_size_has_no_upright_line_and_does_not_move_the_axis() -> None:
    with style.drawing():
        (axes,) = draw(MARKS[:1], (), (Level("full", 24.0),)).axes
    assert len(axes.lines) == 2
    assert axes.get_xlim()[1] == 2 * MIB * 1.06
    # All perplexities are one: 5 % of 24 is 1.2.
    assert axes.get_ylim() == (24.0 - 1.2, 24.0 + 1.2)


def test_names_that_users_gave_are_made_drawable_and_many_trails_have_marks() -> None:
    trails = tuple(Trail(f"policy\n{n} 漢", ((float(n + 1), 20.0),)) for n in range(8))
    with style.drawing():
        figure = draw(MARKS[:1], trails, ())
        figure.draw_without_rendering()
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[1] == "policy 0 □"
    assert len(texts) == 9


def test_one_variant_far_above_the_others_is_named_at_the_edge_and_does_not_press_them_flat() -> (
    None
):
    broken = Mark("broken", 3, 1 * MIB, 60.0)
    with style.drawing():
        (axes,) = draw((*MARKS, broken), TRAILS, (Level("full", 20.0, 4 * MIB),)).axes
    # Without it perplexities run from 20 to 30: 60 is 30 above, more than twice the range of 10.
    assert axes.get_ylim() == (20.0 - 0.8, 30.0 + 0.8)
    assert [text.get_text() for text in axes.texts] == ["▲ 60.0, above this picture"]
    # 50 is 20 above, not more than twice 10: it stays in the picture.
    with style.drawing():
        (axes,) = draw((*MARKS, Mark("far", 3, MIB, 50.0)), TRAILS, (Level("full", 20.0),)).axes
    assert axes.get_ylim()[1] > 50.0
    assert not axes.texts
