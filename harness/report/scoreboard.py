"""The scoreboard as a page, a picture and a terminal table.

Method: servers and the reference engine get tables of their own, since one request at a time in
transformers is another axis than a server's throughput. Each cell carries its stamp in words; a
cell without a figure says why. The picture holds small multiples, one panel per figure, servers
alone, with hollow marks for what is emulated.

Not covered: how a figure came about; the run's own report holds the evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import units
from harness.analysis.scoreboard import METRICS, Scoreboard, ScoreCell, ScoreRow
from harness.errors import StoreError
from harness.report import claims, html, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

PAGE = "scoreboard.html"
HEADS = {
    "memory": "memory saving",
    "capacity": "capacity",
    "throughput": "throughput",
    "ttft": "TTFT p50",
    "quality": "perplexity",
}
BETTER = {
    "memory": "higher is better",
    "capacity": "higher is better",
    "throughput": "higher is better",
    "ttft": "lower is better",
    "quality": "1 is unchanged, higher is worse",
}
#: Strategies in one picture.
MAX_ROWS = 16


@dataclass(frozen=True, slots=True)
class ScoreCellText:
    """A cell as it is read: the figure, its stamp, what is to be known of it."""

    value: str
    stamp: str
    note: str


def cell_text(cell: ScoreCell) -> ScoreCellText:
    """``1.25× [1.16, 1.35]`` with its stamp; without a figure a dash and the reason."""
    note = " ".join((cell.note or "").split())
    if cell.value is None:
        return ScoreCellText(units.DASH, cell.stamp, note)
    value = units.format_ratio(cell.value)
    if cell.low is not None and cell.high is not None:
        value += f" [{cell.low:.2f}, {cell.high:.2f}]"
    doubts = [note] if note else []
    if cell.shown is False:
        doubts.insert(0, "no difference shown")
    if cell.judgement == "suspect":
        doubts.insert(0, "suspect")
    return ScoreCellText(value, cell.stamp, "; ".join(doubts))


def write_scoreboard(board: Scoreboard, folder: Path) -> tuple[Path, Path]:
    """Write page and pictures into ``folder``; returns the page and the PNG.

    Raises:
        StoreError: the files can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        title = _title(board)
        with style.drawing():
            picture = style.write(_draw(board), "scoreboard", title, folder)
        path = folder / PAGE
        beside = path.with_name(PAGE + ".tmp")
        beside.write_text(_page(board, picture), encoding="utf-8")
        beside.replace(path)
        return path, picture.png
    except OSError as error:
        raise StoreError(f"can't write the report: {error.strerror}", where=str(folder)) from error


def _title(board: Scoreboard) -> str:
    count = len(_served(board))
    return f"What {count} strateg{'y' if count == 1 else 'ies'} bought on {board.device}"


def _served(board: Scoreboard) -> list[ScoreRow]:
    return [row for row in board.rows if row.engine == "vllm"]


def _page(board: Scoreboard, picture: style.Picture) -> str:
    from markupsafe import Markup

    reference = [row for row in board.rows if row.engine != "vllm"]
    tables = [("On vLLM", _served(board))] + (
        [("On the reference engine, one request at a time", reference)] if reference else []
    )
    context: dict[str, Any] = {
        "board": board,
        "tables": [(title, [_line(row) for row in rows]) for title, rows in tables if rows],
        "heads": [(HEADS[metric], BETTER[metric]) for metric in METRICS],
        "claim": claims.claims(["C15"])[0],
        "picture": picture,
        "svg": Markup(picture.inline_svg),  # noqa: S704
        "alt": _alt(board),
    }
    return html.render("scoreboard.html.j2", context)


def _line(row: ScoreRow) -> dict[str, Any]:
    return {
        "row": row,
        "cells": [(HEADS[metric], cell_text(row.cells[metric])) for metric in METRICS],
    }


def _alt(board: Scoreboard) -> str:
    lines = []
    for row in _served(board):
        told = ", ".join(
            f"{HEADS[metric]} {cell_text(row.cells[metric]).value} {row.cells[metric].stamp}"
            for metric in METRICS
        )
        lines.append(f"{row.strategy}: {told}")
    return "; ".join(lines)


# ── the picture ─────────────────────────────────────────────────────────────────────────────


def _draw(board: Scoreboard) -> Figure:
    rows = _served(board)[:MAX_ROWS]
    shown = [m for m in METRICS if any(row.cells[m].value is not None for row in rows)] or [
        "memory"
    ]
    figure, grid = style.figure(
        1.3 + 0.36 * max(len(rows), 1), ncols=len(shown), sharey=True, squeeze=False
    )
    for place, (axes, metric) in enumerate(zip(grid[0], shown, strict=True)):
        _panel(axes, rows, metric)
        if place == 0:
            names = [style.drawable(row.strategy, 30) for row in rows]
            axes.set_yticks(range(len(rows)), names)
    return figure


def _panel(axes: Axes, rows: Sequence[ScoreRow], metric: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.axvline(1.0, color=style.MUTED, linewidth=0.9, linestyle=":")
    ends = [1.0]
    for place, row in enumerate(rows):
        cell = row.cells[metric]
        if cell.value is None:
            axes.text(1.0, place, cell.stamp, fontsize=7.5, color=style.MUTED, va="center")
            continue
        _mark(axes, place, cell)
        ends += [value for value in (cell.value, cell.high) if value is not None]
    axes.set_xlim(0.0, max(ends) * 1.25)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_title(HEADS[metric], fontsize=9)
    axes.set_xlabel(BETTER[metric].replace(", ", ",\n"), fontsize=7.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.tick_params(axis="x", labelsize=7.5)
    style.light_grid(axes, "x")


def _mark(axes: Axes, place: int, cell: ScoreCell) -> None:
    tone = style.look(0)
    if cell.low is not None and cell.high is not None:
        axes.plot([cell.low, cell.high], [place, place], color=style.INK, linewidth=1.6)
    hollow = cell.stamp != "measured"
    axes.plot(
        cell.value or 0.0,
        place,
        marker=tone.marker,
        markersize=7,
        linestyle="none",
        markeredgecolor=tone.color,
        markerfacecolor=style.PAPER if hollow else tone.color,
    )


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
