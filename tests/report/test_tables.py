from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.compare import analyse
from harness.analysis.results import Comparison, Interval, Unit
from harness.report.tables import RowText, TableText, ratio_text, table, value_text
from harness.units import DASH
from tests import records


def interval(ratio: float, low: float | None, high: float | None) -> Interval:
    return Interval(ratio, low, high, 3 if low else 1, 0.95, "t")


def tables_of(repeats: int = 3, **kwargs: object) -> list[TableText]:
    comparisons = analyse(*records.bench(repeats, **kwargs)).comparisons  # type: ignore[arg-type]
    return [table(comparison) for comparison in comparisons]


def row(text: TableText, metric: str) -> RowText:
    return next(r for r in (*text.rows, *text.more) if r.metric == metric)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (23040.0, "bytes_per_token", "23,040 B"),
        (11520.5, "bytes_per_token", "11,520.5 B"),
        (5120, "tokens", "5,120"),
        (0.0224, "seconds", "22.4 ms"),
        (85.7, "tokens_per_s", "85.7 tok/s"),
        (0.5128, "fraction", "51.3 %"),
        (1 << 30, "bytes", "1.00 GiB"),
        (0.1234, "joules_per_token", "0.123 J"),
        (11.375, "concurrency", "11.38"),
        (0, "count", "0"),
        (None, "tokens", DASH),
    ],
)
def test_a_figure_is_written_in_its_unit_and_the_unknown_as_a_dash(
    value: float | None, unit: Unit, text: str
) -> None:
    assert value_text(value, unit) == text


def test_a_ratio_shows_the_digits_that_tell_the_ends_of_its_interval_apart() -> None:
    assert ratio_text(1.22, interval(1.22, 1.19, 1.26)) == "1.22× [1.19, 1.26]"
    # 1.005 / 0.995 − 1 = 1 %, below the 2 % at which two digits no longer do.
    assert ratio_text(1.0, interval(1.0, 0.995, 1.005)) == "1.000× [0.995, 1.005]"
    assert ratio_text(0.052, interval(0.052, 0.05, 0.054)) == "0.052× [0.050, 0.054]"


def test_a_ratio_without_an_interval_stands_alone() -> None:
    assert ratio_text(1.22, interval(1.22, None, None)) == "1.22×"
    assert ratio_text(2.0, None) == "2.00×"
    assert ratio_text(None, None) == DASH


def test_replicates_that_are_all_the_same_are_given_no_interval_of_width_zero() -> None:
    assert ratio_text(0.5, interval(0.5, 0.5, 0.5)) == "0.50×"


def test_the_scoreboard_holds_granted_capacity_beside_theory() -> None:
    cells = row(tables_of()[0], "kv.kv_cache_tokens").cells
    # 40 and 80 blocks of 128 tokens.
    assert [(cell.value, cell.theory) for cell in cells] == [
        ("5,120", "5,120"),
        ("10,240", "10,240"),
    ]
    assert cells[1].ratio == "2.00×"
    assert (cells[1].effect, cells[1].tone) == ("better", "good")


def test_p99_is_a_dash_below_a_hundred_requests_and_a_figure_from_there() -> None:
    few = row(tables_of()[0], "ttft_s.p99")
    assert {cell.value for cell in few.cells} == {DASH}
    assert "100 requests" in few.remark
    hundred = {**records.EXERCISE, "num_prompts": 100}
    many = row(tables_of(workloads=(hundred,))[0], "ttft_s.p99")
    assert all(cell.value.endswith("s") for cell in many.cells)
    assert many.remark == ""


def test_below_three_repeats_no_difference_is_judged() -> None:
    cell = row(tables_of(repeats=1)[1], "output_throughput").cells[1]
    assert cell.effect == "no interval"
    assert "[" not in cell.ratio


def test_an_invalid_figure_is_withheld_with_its_reason_and_nothing_is_held_against_it() -> None:
    text = table(comparison_with_lost_requests())
    base, variant = row(text, "output_throughput").cells
    assert base.value == "withheld"
    assert base.notes == (1,)
    assert "did not complete" in text.notes[0].text
    assert variant.value.endswith("tok/s")
    assert (variant.ratio, variant.effect) == (DASH, "")


def comparison_with_lost_requests() -> Comparison:
    bench, trials = records.bench()
    lost = [
        replace(
            trial,
            requests=tuple(
                replace(r, error="connection reset", finished_s=None) if r.index < 25 else r
                for r in trial.requests
            ),
        )
        if trial.run.trial.variant == "fp16"
        else trial
        for trial in trials
    ]
    return analyse(bench, lost).comparisons[0]


def test_a_doubt_that_several_repeats_share_is_told_once() -> None:
    text = tables_of()[1]
    preempting = [note for note in text.notes if "preemptions" in note.text]
    assert len(preempting) == 1
    assert [note.number for note in text.notes] == list(range(1, len(text.notes) + 1))


def test_each_doubt_stands_below_the_figures_that_point_at_it() -> None:
    text = tables_of()[1]
    on_board = {number for r in text.rows for cell in r.cells for number in cell.notes}
    assert {note.number for note in text.board_notes} == on_board != set()
    # The pool's rows come first and nobody doubts them; the load's are put below.
    folded = replace(text, rows=text.rows[:3], more=(*text.rows[3:], *text.more))
    assert folded.board_notes == ()
    assert folded.more_notes == text.notes


def test_rows_of_which_nothing_is_known_are_left_out() -> None:
    metrics = {r.metric for text in tables_of() for r in (*text.rows, *text.more)}
    assert "energy_per_output_token_j" not in metrics
    assert "gpu_used_peak_bytes" not in metrics
    on_gpu = tables_of(environment=records.GPU_MACHINE)
    assert row(on_gpu[0], "energy_per_output_token_j").cells[0].value.endswith(" J")


def test_a_p90_of_fewer_than_ten_requests_has_no_row_and_one_of_ten_has() -> None:
    def metrics(requests: int) -> set[str]:
        text = tables_of(workloads=({**records.EXERCISE, "num_prompts": requests},))[0]
        return {each.metric for each in (*text.rows, *text.more)}

    assert "ttft_s.p90" not in metrics(9)
    assert "ttft_s.p90" in metrics(10)
    assert "ttft_s.p50" in metrics(9)


def test_a_variant_of_which_nothing_was_measured_has_no_column_but_is_named() -> None:
    comparison = analyse(*records.bench(3)).comparisons[0]
    silent = replace(
        comparison,
        rows=tuple(
            replace(
                one,
                cells=tuple(c if c.is_baseline else replace(c, value=None) for c in one.cells),
            )
            for one in comparison.rows
        ),
    )
    text = table(silent)
    assert (text.variants, text.left_out) == (("fp16",), ("fp8",))
    assert all(len(each.cells) == 1 for each in text.rows)


def test_the_quotient_of_two_medians_is_told_where_it_lies_outside_the_interval() -> None:
    comparison = analyse(*records.bench(3)).comparisons[0]
    found = comparison.row("output_throughput")
    assert found is not None
    base, other = found.cells

    def aside(value: float) -> str:
        cells = (
            replace(base, value=100.0),
            replace(other, value=value, interval=interval(0.94, 0.90, 0.98)),
        )
        return (
            row(
                table(replace(comparison, rows=(replace(found, cells=cells),))), "output_throughput"
            )
            .cells[1]
            .aside
        )

    # 108 / 100 = 1.08 lies above 0.98; 95 / 100 and, within a rounding, 98.5 / 100 do not.
    assert aside(108.0) == "medians 1.08×"
    assert aside(95.0) == aside(98.5) == ""
