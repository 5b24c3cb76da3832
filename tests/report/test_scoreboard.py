from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from harness.analysis.results import Analysis
from harness.analysis.scoreboard import ScoreCell, scoreboard
from harness.errors import StoreError
from harness.record import BenchRecord
from harness.report.scoreboard import cell_text, print_scoreboard, write_scoreboard
from tests.analysis.test_scoreboard import fp8, pair


@pytest.fixture(scope="module")
def run() -> tuple[BenchRecord, Analysis]:
    return pair(*fp8())


def test_a_cell_without_a_figure_is_a_dash_with_its_stamp_and_reason() -> None:
    told = cell_text(ScoreCell("skipped", note="no such\n dtype"))
    assert (told.value, told.stamp, told.note) == ("—", "skipped", "no such dtype")


def test_a_cell_with_a_figure_tells_its_interval_and_its_doubts() -> None:
    told = cell_text(ScoreCell("measured", 1.2, 0.9, 1.5, shown=False, judgement="suspect"))
    assert told.value == "1.20× [0.90, 1.50]"
    assert told.note == "suspect; no difference shown"


def test_the_page_stamps_every_cell_and_escapes_what_users_named(
    run: tuple[BenchRecord, Analysis], tmp_path: Path
) -> None:
    bench, analysis = run
    hostile = replace(bench, scenario_name="<script>alert(1)</script>")
    page, png = write_scoreboard(scoreboard([(hostile, analysis)]), tmp_path / "new")
    text = page.read_text()
    assert png.is_file()
    assert "<script>" not in text
    assert text.count('<span class="badge good">measured</span>') == 4
    assert text.count('<span class="badge even">not measured</span>') == 1
    assert "Claim C15" in text
    assert 'src="http' not in text


def test_an_emulated_cell_looks_like_none_that_was_measured(
    run: tuple[BenchRecord, Analysis], tmp_path: Path
) -> None:
    board = scoreboard([run])
    (row,) = board.rows
    cells = {**row.cells, "throughput": replace(row.cells["throughput"], stamp="emulated")}
    page, _ = write_scoreboard(replace(board, rows=(replace(row, cells=cells),)), tmp_path)
    assert page.read_text().count('<span class="badge doubt">emulated</span>') == 1


def test_the_reference_engine_has_a_table_of_its_own(
    run: tuple[BenchRecord, Analysis], tmp_path: Path
) -> None:
    board = scoreboard([run])
    (row,) = board.rows
    other = replace(row, engine="reference", strategy="growing cache instead of none")
    page, _ = write_scoreboard(replace(board, rows=(row, other)), tmp_path)
    text = page.read_text()
    served, reference = text.split("<h2>On the reference engine, one request at a time</h2>")
    assert "KV dtype fp8" in served
    assert "growing cache instead of none" not in served
    assert "growing cache instead of none" in reference


def test_the_terminal_tells_the_same_figures_and_where_the_page_lies(
    run: tuple[BenchRecord, Analysis],
) -> None:
    out = StringIO()
    print_scoreboard(scoreboard([run]), Path("reports/x.html"), Console(file=out, width=200))
    text = out.getvalue()
    assert "KV dtype fp8  (flags: kv_cache_dtype=fp8; fp8_vs_fp16)" in text
    assert "2.00×                  measured     tokens granted" in text
    assert "report: reports/x.html" in text


def test_a_name_from_a_stored_run_does_not_steer_the_terminal(
    run: tuple[BenchRecord, Analysis],
) -> None:
    board = scoreboard([run])
    (row,) = board.rows
    evil = replace(row, strategy="fp8\x1b[2J", change="\u202ecode")
    out = StringIO()
    print_scoreboard(replace(board, rows=(evil,)), Path("x.html"), Console(file=out, width=200))
    assert "fp8�[2J" in out.getvalue()
    assert not {"\x1b", "\u202e"} & set(out.getvalue())


def test_a_reason_that_a_whole_row_shares_is_told_once_and_to_its_end(
    run: tuple[BenchRecord, Analysis], tmp_path: Path
) -> None:
    board = scoreboard([run])
    (row,) = board.rows
    reason = "RuntimeError: " + "this kernel wants another device than the one that is here; " * 5
    gone = replace(row, cells=dict.fromkeys(row.cells, ScoreCell("skipped", note=reason)))
    page, _ = write_scoreboard(replace(board, rows=(row, gone)), tmp_path)
    told = " ".join(reason.split())
    assert page.read_text().count(told) == 1
    assert f'colspan="{len(row.cells)}"' in page.read_text()
    out = StringIO()
    print_scoreboard(replace(board, rows=(gone,)), page, Console(file=out, width=80))
    assert f"skipped: {told}" in " ".join(out.getvalue().split())


def test_a_folder_that_can_not_be_written_is_told(
    run: tuple[BenchRecord, Analysis], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't write the report"):
        write_scoreboard(scoreboard([run]), tmp_path / "file")
