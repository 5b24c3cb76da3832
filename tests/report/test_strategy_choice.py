"""The section that sets all strategies of one run side by side, from the stored run of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness import store
from harness.analysis.compare import analyse
from harness.analysis.results import Analysis
from harness.record import BenchRecord
from harness.report import html, strategy_choice, style
from harness.report.section import Drawn
from harness.report.section_parts import Section
from tests import records
from tests.report.stored import unpacked


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[BenchRecord, Analysis]:
    folder = unpacked("strategies", tmp_path_factory.mktemp("run"))
    bench, trials = store.read_bench(folder)
    return bench, analyse(bench, trials, store.read_quality(folder))


def made(stored: tuple[BenchRecord, Analysis]) -> Section:
    section = strategy_choice.section(stored[0], (), stored[1])
    assert section is not None
    return section


def test_every_strategy_has_a_row_and_every_figure_its_stamp(
    stored: tuple[BenchRecord, Analysis],
) -> None:
    (grid,) = made(stored).grids
    assert len(grid.rows) == len(stored[0].scenario["variants"]) - 1
    stamps = ("measured", "emulated", "modelled", "skipped", "failed", "not measured")
    for row in grid.rows:
        assert all(cell.endswith(stamps) for cell in row[1:-1])
    offloading = next(row for row in grid.rows if row[0] == "CPU offloading")
    assert set(offloading[1:-1]) == {"skipped"}
    emulated = next(row for row in grid.rows if row[0] == "preallocation")
    assert emulated[3].endswith(", emulated")


def test_the_finding_names_no_strategy_whose_answers_broke(
    stored: tuple[BenchRecord, Analysis],
) -> None:
    section = made(stored)
    assert "2 failed the text gate" in section.lead
    assert "most capacity with" in section.lead
    assert "window" not in section.lead
    assert "eviction" not in section.lead
    assert section.claims == ("C15",)


def test_the_panels_share_one_order_of_strategies(stored: tuple[BenchRecord, Analysis]) -> None:
    (chart,) = made(stored).charts
    with style.drawing():
        figure = chart.draw()
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names[0] == "KV dtype fp8"
    assert len(figure.axes) == 5
    assert all(axes.get_ylim() == figure.axes[0].get_ylim() for axes in figure.axes)
    assert "CPU offloading: memory saving — skipped" in chart.alt


def test_a_run_of_one_kind_of_strategy_has_no_choice_to_show() -> None:
    bench, trials = records.bench(1, workloads=(records.EXERCISE,))
    assert strategy_choice.section(bench, trials, analyse(bench, trials)) is None
    gone = [records.skipped(trial, "no") for trial in trials]
    assert strategy_choice.section(bench, gone, analyse(bench, gone)) is None


def test_many_dtypes_are_one_family_and_no_choice_between_strategies(
    stored: tuple[BenchRecord, Analysis],
) -> None:
    bench, analysis = stored
    names = [name for name in bench.scenario["variants"] if name != analysis.baseline]
    assert len(names) >= strategy_choice.MIN_KINDS
    dtypes = {name: {"flags": {"kv_cache_dtype": f"fp8_{i}"}} for i, name in enumerate(names)}
    scenario = {**bench.scenario, "variants": {analysis.baseline: {}, **dtypes}}
    assert strategy_choice.section(replace(bench, scenario=scenario), (), analysis) is None


def test_a_run_of_many_strategies_opens_with_what_was_found_then_with_broken_text(
    stored: tuple[BenchRecord, Analysis],
) -> None:
    section = made(stored)
    assert section.opens
    assert section.keeps_points
    found = html._opening(stored[1], [Drawn(section, ())])
    assert found.lead == section.lead
    assert "(random weights)" in found.lead
    assert found.points[0].about == "Fails the text gate"
    assert "window_256 and eviction don't count" in found.points[0].text
