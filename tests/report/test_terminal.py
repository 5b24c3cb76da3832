from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harness.analysis.compare import analyse
from harness.report.terminal import print_result
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
