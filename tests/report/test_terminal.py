from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harness.analysis.compare import analyse
from harness.report.tables import table
from harness.report.terminal import print_result, print_table
from tests import records


def printed(*made: object, report: Path | None = None, width: int = 100) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    print_result(analyse(*(made or records.bench())), report, console)  # type: ignore[arg-type]
    return stream.getvalue()


def test_the_short_table_says_profile_answer_and_where_the_report_lies() -> None:
    text = printed(report=Path("reports/fp8_vs_fp16/x/report.html"))
    assert text.startswith("CPU profile  fp8_vs_fp16")
    assert "fp8 holds 2.00× the KV tokens of fp16" in text
    assert text.rstrip().endswith("report: reports/fp8_vs_fp16/x/report.html")


def test_each_workload_is_a_table_of_the_figures_that_decide() -> None:
    lines = printed().splitlines()
    row = next(line for line in lines if "KV capacity" in line)
    assert row.split() == ["KV", "capacity", "5,120", "10,240", "2.00×", "better"]
    assert sum("KV capacity" in line for line in lines) == 2


def test_standard_output_is_left_to_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(analyse(*records.bench(1)), None)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "fp8 holds" in captured.err


def test_names_from_files_neither_steer_the_terminal_nor_become_markup() -> None:
    bench, trials = records.bench(1)
    text = printed(replace(bench, scenario_name="\x1b[31m[bold]x[/bold]\r"), trials)
    assert "\x1b" not in text
    assert "[bold]x[/bold]" in text


def test_several_variants_are_stacked_in_columns() -> None:
    text = printed(*records.bench(variants=("fp16", "fp8", "fp8_e5m2")), width=120)
    assert "no difference" in text
    assert "fp8 holds 2.00× and fp8_e5m2 1.00× the KV tokens" in text


def test_findings_of_strategies_come_first_and_many_loads_are_left_to_the_report() -> None:
    loads = tuple(
        {**records.EXERCISE, "name": f"load {number}", "concurrency": number}
        for number in range(2, 8)
    )
    analysis = analyse(*records.bench(1, workloads=loads))
    out = Console(record=True, width=120, file=io.StringIO())
    print_result(analysis, None, out, leads=("The pool is full at 7.",))
    text = out.export_text()
    assert text.index("The pool is full at 7.") < text.index("fp8 holds")
    assert "… and 2 more loads, in the report" in text
    assert "load 5" in text
    assert "load 6:" not in text


#: Longer than any terminal is wide.
REASON = "RuntimeError: " + "this kernel wants another device than the one that is here; " * 4


def many() -> tuple[object, ...]:
    """Seven variants that ran and one that the engine refused."""
    names = ("fp16", "fp8", "prefix_sharing", "window_256", "eviction", "one_kv_head", "fp8_e5m2")
    bench, trials = records.bench(3, variants=(*names, "offload"), workloads=(records.KV_BOUND,))
    found = [
        records.skipped(trial, REASON) if trial.run.trial.variant == "offload" else trial
        for trial in trials
    ]
    return replace(bench, skipped={"offload": REASON}), found


@pytest.mark.parametrize("width", [80, 100, 200])
def test_many_variants_are_spread_over_tables_in_which_nothing_is_cut(width: int) -> None:
    text = printed(*many(), width=width)
    heads = [line for line in text.splitlines() if line.lstrip().startswith("fp16  ")]
    # Each table has the baseline beside it, every variant that ran stands in one, whole.
    named = [name for line in heads for name in line.split()[1:]]
    assert named == ["fp8", "prefix_sharing", "window_256", "eviction", "one_kv_head", "fp8_e5m2"]
    assert (len(heads) == 1) is (width == 200)
    assert "…" not in text
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert "without a figure under this load: offload" in text


def test_reasons_are_told_to_their_end_in_narrow_terminals_too() -> None:
    flat = " ".join(printed(*many(), width=80).split())
    assert " ".join(REASON.split()) in flat
    assert "not the speed of the kernels" in flat


def test_a_doubt_below_the_table_is_one_that_a_figure_in_it_points_at() -> None:
    lines = printed().splitlines()
    notes = {line.split()[0] for line in lines if line.startswith(" [")}
    rest = " ".join(line for line in lines if not line.startswith(" ["))
    assert notes == set(re.findall(r"\[\d+\]", rest)) != set()


def test_a_doubt_of_figures_that_are_not_shown_is_counted() -> None:
    bound = table(analyse(*records.bench()).comparisons[1])
    folded = replace(bound, rows=bound.rows[:3], more=bound.rows[3:])
    stream = io.StringIO()
    print_table(folded, Console(file=stream, width=100))
    assert "[1]" not in stream.getvalue()
    assert " 3 more doubts about other figures: in the report" in stream.getvalue()
