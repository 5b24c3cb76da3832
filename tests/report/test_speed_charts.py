from __future__ import annotations

from dataclasses import replace

from harness.analysis.compare import analyse
from harness.analysis.results import Analysis
from harness.report import charts, speed_charts, style
from tests import records

PLACES = {"fp16": 0, "fp8": 1, "fp4": 2}
SMALL = {**records.EXERCISE, "num_prompts": 4, "name": None}


def analysis(repeats: int = 3, **kwargs: object) -> Analysis:
    return analyse(*records.bench(repeats, **kwargs))  # type: ignore[arg-type]


def levels(count: int) -> tuple[dict[str, object], ...]:
    return tuple({**SMALL, "concurrency": n + 1} for n in range(count))


def throughput(found: Analysis) -> charts.Chart:
    chart = speed_charts.throughput(found, PLACES)
    assert chart is not None
    return chart


def test_each_load_is_a_panel_with_its_variants_and_the_ratio_behind_a_bar() -> None:
    chart = throughput(analysis())
    with style.drawing():
        figure = chart.draw()
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert [label.get_text() for label in axes.get_yticklabels()] == ["fp16", "fp8"]
    assert "fp8 " in chart.alt
    assert "× [" in chart.alt
    assert chart.title.endswith(", against fp16")


def test_the_loads_of_a_variant_alone_are_the_rows_of_one_panel() -> None:
    found = analysis(1, variants=("fp16",), workloads=levels(3))
    for chart in (throughput(found), speed_charts.latency(found, PLACES)):
        assert chart is not None
        with style.drawing():
            axes = chart.draw().axes[0]
        rows = [label.get_text() for label in axes.get_yticklabels()]
        assert rows == ["1 at once", "2 at once", "3 at once"]
        assert "over 3 loads" in chart.title
    assert "ratio to the baseline" not in throughput(found).caption


def test_loads_beyond_those_there_is_room_for_are_counted() -> None:
    found = analysis(1, workloads=levels(speed_charts.MAX_GROUPS + 1))
    chart = throughput(found)
    with style.drawing():
        assert len(chart.draw().axes) == speed_charts.MAX_GROUPS
    assert chart.caption.endswith(" 1 more load is in the tables.")
    assert speed_charts.left_out(2) == " 2 more loads are in the tables."
    assert speed_charts.left_out(0) == speed_charts.left_out(-3) == ""


def test_an_invalid_figure_is_withheld_from_bars_and_marks() -> None:
    bench, trials = records.bench(workloads=(records.EXERCISE,))
    lost = records.with_lost_requests(trials, "fp8")
    found = analyse(bench, lost)
    assert "fp8 withheld: judged invalid" in throughput(found).alt
    (comparison,) = found.comparisons
    assert speed_charts.usable(comparison, "ttft_s.p50", "fp8") is None
    assert (speed_charts.usable(comparison, "ttft_s.p50", "fp16") or 0.0) > 0.0
    assert speed_charts.usable(comparison, "ttft_s.p50", "nobody") is None


def test_a_skipped_variant_is_not_drawn_and_said_to_be_left_out() -> None:
    bench, trials = records.bench(1, variants=("fp16", "fp8", "fp4"), workloads=(records.EXERCISE,))
    gone = [
        records.skipped(trial, "no kernel") if trial.run.trial.variant == "fp4" else trial
        for trial in trials
    ]
    chart = throughput(analyse(replace(bench, skipped={"fp4": "no kernel"}), gone))
    assert "fp4" not in chart.alt
    assert chart.caption.endswith(" 1 skipped variant is not drawn.")


def test_below_three_repeats_a_title_tells_an_observation_and_claims_nothing() -> None:
    chart = throughput(analysis(1))
    assert chart.title.startswith("Output throughput, observed without intervals: ")
    assert "[" not in chart.title


def test_a_run_with_nothing_measured_has_neither_chart() -> None:
    bench, trials = records.bench(1)
    nothing = analyse(bench, [records.skipped(trial, "no") for trial in trials])
    assert speed_charts.throughput(nothing, PLACES) is None
    assert speed_charts.latency(nothing, PLACES) is None
