"""The scoreboard as a page, a picture and a terminal table.

Method: servers and the reference engine get tables of their own, since one request at a time in
transformers is another axis than a server's throughput. Each cell carries its stamp in words; a
cell without a figure says why. The picture holds small multiples, one panel per figure, servers
alone, with hollow marks for what is emulated.

Not covered: how a figure came about; the run's own report holds the evidence.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.scoreboard import METRICS, Scoreboard, ScoreRow
from harness.characters import printable
from harness.errors import StoreError
from harness.report import claims, html
from harness.report.plate import Plate, plate
from harness.report.scoreboard_text import BETTER, HEADS, cell_text, chart, served
from harness.store import write_whole

if TYPE_CHECKING:
    from rich.console import Console

PAGE = "scoreboard.html"


def write_scoreboard(board: Scoreboard, folder: Path) -> tuple[Path, Path]:
    """Write page and pictures into ``folder``; returns the page and the PNG.

    Raises:
        StoreError: the files can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drawn = plate(chart(board), folder)
        path = folder / PAGE
        write_whole(path, _page(board, drawn))
        return path, drawn.picture.png
    except OSError as error:
        raise StoreError(f"can't write the report: {error.strerror}", where=str(folder)) from error


def _page(board: Scoreboard, drawn: Plate) -> str:
    reference = [row for row in board.rows if row.engine != "vllm"]
    tables = [("On vLLM", served(board))] + (
        [("On the reference engine, one request at a time", reference)] if reference else []
    )
    context: dict[str, Any] = {
        "board": board,
        "tables": [(title, [_line(row) for row in rows]) for title, rows in tables if rows],
        "heads": [(HEADS[metric], BETTER[metric]) for metric in METRICS],
        "claim": claims.claims(["C15"])[0],
        "picture": drawn.picture,
        "svg": html.own(drawn.picture.inline_svg),
        "alt": drawn.alt,
        "caption": drawn.caption,
    }
    return html.render("scoreboard.html.j2", context)


def _line(row: ScoreRow) -> dict[str, Any]:
    """One strategy's cells; a reason that all of them share is told once, for the whole row."""
    cells = [(HEADS[metric], cell_text(row.cells[metric])) for metric in METRICS]
    return {"row": row, "cells": cells, "why": _shared_reason(row)}


def _shared_reason(row: ScoreRow) -> str | None:
    """Why a row has no figure at all, where one reason stands in each of its cells."""
    told = {cell_text(row.cells[metric]) for metric in METRICS}
    return told.pop().note if len(told) == 1 and row.cells[METRICS[0]].value is None else None


# ── the terminal ────────────────────────────────────────────────────────────────────────────


def print_scoreboard(board: Scoreboard, page: Path, console: Console) -> None:
    """Print every strategy with its figures, the recommendation, and where the page lies."""
    from rich.text import Text

    console.print(Text(printable(f"{board.profile.upper()} profile  {board.device}"), style="bold"))
    for row in board.rows:
        head = f"{row.strategy}  ({row.effort}: {row.change}; {row.scenario})"
        console.print(Text(printable(head)))
        _print_cells(row, console)
    for text in board.recommendation:
        console.print(Text(printable(f" • {text}")))
    for text in board.cautions:
        console.print(Text(printable(f" ! {text}"), style="yellow"))
    console.print(Text(printable(f"report: {page}")), soft_wrap=True)


def _print_cells(row: ScoreRow, console: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    if (why := _shared_reason(row)) is not None:
        told = Text(printable(f"{row.cells[METRICS[0]].stamp}: {why}"))
        console.print(Padding(told, (0, 0, 0, 4), expand=False))
        return
    for metric in METRICS:
        told_cell = cell_text(row.cells[metric])
        line = f"{HEADS[metric]:19} {told_cell.value:22} {told_cell.stamp:12} {told_cell.note}"
        console.print(Padding(Text(printable(line.rstrip())), (0, 0, 0, 4), expand=False))
