from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from harness.analysis.gate import GateResult, decide, parse_rule
from harness.analysis.run_comparison import RunComparison, compare_runs
from harness.errors import StoreError
from harness.report.run_comparison import page_folder, write_page
from harness.report.run_comparison_text import run_comparison_text
from harness.report.terminal import print_run_comparison
from tests import records
from tests.analysis import runs

A = runs.run()
B = runs.again(A)
HOSTILE = "<script>alert(1)</script>\x1b[2J"


def gated(run_comparison: RunComparison, *rules: str) -> GateResult:
    return decide(
        run_comparison, [parse_rule(rule) for rule in rules or ("output_throughput<-5%",)]
    )


def page_of(run_comparison: RunComparison, gate: GateResult | None, folder: Path) -> str:
    path = write_page(
        run_comparison,
        gate,
        folder,
        run_dirs=[Path("r/a"), Path("r/b")],
        command=["kvbench", "compare"],
    )
    return path.read_text()


def words_of(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_the_page_tells_runs_differences_gate_and_every_pair(tmp_path: Path) -> None:
    run_comparison = compare_runs([A, runs.on_machine(runs.all_slower(B, 2.0), cpu="Other CPU")])
    page = page_of(run_comparison, gated(run_comparison), tmp_path / "new")
    words = words_of(page)
    assert "The gate answers fail: of 2 checks 2 fail." in words
    assert "Other CPU" in words
    assert "-50.0 % [" in words
    assert words.count("Ratios unpaired.") == 2
    assert ".venv/bin/kvbench report r/a" in words
    assert (tmp_path / "new" / "ratios.png").is_file()
    assert page.count("<svg") == 1


def test_the_page_loads_nothing_and_escapes_every_name(tmp_path: Path) -> None:
    bench, trials = A
    hostile = replace(bench, scenario_name=HOSTILE, run_id=HOSTILE)
    run_comparison = compare_runs([(hostile, trials), runs.on_machine(B, cpu=HOSTILE)])
    page = page_of(run_comparison, gated(run_comparison), tmp_path)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)


def test_without_a_gate_the_page_has_none(tmp_path: Path) -> None:
    page = page_of(compare_runs([A, B]), None, tmp_path)
    assert 'id="gate"' not in page
    assert "The gate answers" not in page


def test_runs_that_measured_nothing_make_a_page_without_a_picture(tmp_path: Path) -> None:
    skipped = runs.with_trials(A, lambda t: records.skipped(t, "no such dtype"))
    run_comparison = compare_runs([skipped, skipped])
    page = page_of(run_comparison, gated(run_comparison), tmp_path)
    assert "3 skipped (no such dtype)" in words_of(page)
    assert "<svg" not in page


def test_a_page_s_folder_is_named_for_its_runs_and_stays_below_the_root(tmp_path: Path) -> None:
    run_comparison = compare_runs([A, B])
    assert page_folder(run_comparison, tmp_path).name == f"{A[0].run_id}-vs-{B[0].run_id}"
    out = compare_runs([A, (replace(B[0], run_id="../../etc"), B[1])])
    assert page_folder(out, tmp_path).resolve().parent == tmp_path / "compare"
    many = compare_runs([A, *(runs.again(A, f"run-{n}" * 5) for n in range(8))])
    fewer = compare_runs([A, *(runs.again(A, f"run-{n}" * 5) for n in range(7))])
    names = {page_folder(run_comparison, tmp_path).name for run_comparison in (many, fewer)}
    assert len(names) == 2
    assert all(len(name) <= 120 for name in names)


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't write the page"):
        page_of(compare_runs([A, B]), None, tmp_path / "file")


def test_the_terminal_tells_the_same_and_no_name_steers_it() -> None:
    run_comparison = compare_runs([A, runs.on_machine(runs.all_slower(B, 2.0), cpu=HOSTILE)])
    out = StringIO()
    text = run_comparison_text(run_comparison, gated(run_comparison))
    print_run_comparison(
        text, Path("reports/x.html"), Console(file=out, width=160, highlight=False)
    )
    told = out.getvalue()
    assert "\x1b" not in told
    assert "differs: cpu: Example CPU @ 2.10GHz | <script>" in told
    assert " fail: output_throughput<-5% (B, fp16 · exercise" in told
    assert told.rstrip().splitlines()[-2:] == [
        "The gate answers fail: of 2 checks 2 fail.",
        "page: reports/x.html",
    ]
