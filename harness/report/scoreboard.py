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
from harness.errors import StoreError
from harness.report import claims, html, style
from harness.report.charts import Chart
from harness.report.scores import BETTER, HEADS, cell_text, chart, served
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
        made = chart(board)
        with style.drawing():
            picture = style.write(made.draw(), made.name, made.title, folder)
        path = folder / PAGE
        write_whole(path, _page(board, picture, made))
        return path, picture.png
    except OSError as error:
        raise StoreError(f"can't write the report: {error.strerror}", where=str(folder)) from error


def _page(board: Scoreboard, picture: style.Picture, made: Chart) -> str:
    from markupsafe import Markup

    reference = [row for row in board.rows if row.engine != "vllm"]
    tables = [("On vLLM", served(board))] + (
        [("On the reference engine, one request at a time", reference)] if reference else []
    )
    context: dict[str, Any] = {
        "board": board,
        "tables": [(title, [_line(row) for row in rows]) for title, rows in tables if rows],
        "heads": [(HEADS[metric], BETTER[metric]) for metric in METRICS],
        "claim": claims.claims(["C15"])[0],
        "picture": picture,
        "svg": Markup(picture.inline_svg),  # noqa: S704
        "alt": made.alt,
        "caption": made.caption,
    }
    return html.render("scoreboard.html.j2", context)


def _line(row: ScoreRow) -> dict[str, Any]:
    return {
        "row": row,
        "cells": [(HEADS[metric], cell_text(row.cells[metric])) for metric in METRICS],
    }


# ── the terminal ────────────────────────────────────────────────────────────────────────────


def print_scoreboard(board: Scoreboard, page: Path, console: Console) -> None:
    """Print every strategy with its figures, the recommendation, and where the page lies."""
    from rich.text import Text

    console.print(Text(f"{board.profile.upper()} profile  {board.device}", style="bold"))
    for row in board.rows:
        console.print(Text(f"{row.strategy}  ({row.effort}: {row.change[:60]}; {row.scenario})"))
        for metric in METRICS:
            told = cell_text(row.cells[metric])
            line = f"    {HEADS[metric]:14} {told.value:22} {told.stamp:12} {told.note}"
            console.print(Text(line.rstrip()), no_wrap=True, overflow="ellipsis")
    for text in board.recommendation:
        console.print(Text(f" • {text}"))
    for text in board.cautions:
        console.print(Text(f" ! {text}", style="yellow"))
    console.print(Text(f"report: {page}"), soft_wrap=True)
