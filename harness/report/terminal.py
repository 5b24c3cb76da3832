"""The short table that a bench prints when it ends.

Method: the same words and figures as the page's opening and scoreboard, the rows that decide
alone, one block per workload; drawn by rich to the width of the terminal, plain where the output
is no terminal. Not covered: evidence, definitions and doubts in full, which are in the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.results import Analysis
from harness.report.sentence import answer
from harness.report.tables import CellText, RowText, TableText, table
from harness.units import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: More tables than these scroll the answer away.
MAX_TABLES = 4
#: The rows that fit on one screen.
ROWS = (
    "kv.kv_bytes_per_token",
    "kv.kv_cache_tokens",
    "output_throughput",
    "ttft_s.p50",
    "ttft_s.p90",
    "tpot_s.p50",
    "preemptions",
    "kv_usage_peak",
)


def print_result(
    analysis: Analysis,
    report: Path | None,
    console: Console | None = None,
    leads: Sequence[str] = (),
) -> None:
    """Print the answer, a table per workload and where the report lies, on stderr by default.

    Standard output stays free for ``--json``.
    """
    from rich.console import Console
    from rich.text import Text

    out = console or Console(stderr=True, highlight=False)
    found = answer(analysis)
    out.print(Text(plain(f"{analysis.profile.upper()} profile  {analysis.scenario}"), style="bold"))
    for comparison in analysis.comparisons[:MAX_TABLES]:
        text = table(comparison)
        out.print(draw_table(text))
        for note in text.notes:
            line = Text(plain(f" [{note.number}] {note.text}"), style="dim")
            out.print(line, no_wrap=True, overflow="ellipsis")
    if len(analysis.comparisons) > MAX_TABLES:
        rest = len(analysis.comparisons) - MAX_TABLES
        more = counted(rest, "more load")
        out.print(Text(f"… and {more}, in the report", style="dim"))
    for lead in (*leads, found.lead):
        out.print(Text(plain(lead), style="bold"))
    for point in found.points:
        out.print(Text(plain(f" • {point}")))
    for limit in found.limits:
        out.print(Text(plain(f" ! {limit}"), style="yellow"))
    if report is not None:
        out.print(Text(plain(f"report: {report}")), soft_wrap=True)


def plain(text: str) -> str:
    """Without control characters: a name from a file must not steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


def draw_table(text: TableText) -> Table:
    """One load as a table of the rows that decide; every text is made harmless."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    two = len(text.variants) == 2
    title = Text(plain(text.label), style="bold")
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("")
    for variant in text.variants:
        drawn.add_column(Text(plain(variant)), justify="right")
    if two:
        drawn.add_column("ratio [95 %]", justify="right", no_wrap=True)
        drawn.add_column("verdict")
    for row in text.rows:
        if row.metric in ROWS:
            drawn.add_row(*(Text(plain(cell)) for cell in _cells(row, two=two)))
    return drawn


def _cells(row: RowText, *, two: bool) -> list[str]:
    if two:
        last = row.cells[-1]
        return [row.label, *map(_value, row.cells), last.ratio, _verdict(last)]
    return [row.label, *(_stacked(cell) for cell in row.cells)]


def _value(cell: CellText) -> str:
    marks = "".join(f"[{number}]" for number in cell.notes)
    return f"{cell.value} {marks}".rstrip()


def _stacked(cell: CellText) -> str:
    return "\n".join(part for part in (_value(cell), cell.ratio, _verdict(cell)) if part)


def _verdict(cell: CellText) -> str:
    doubt = "suspect" if cell.judgement == "suspect" else ""
    effect = cell.effect.removesuffix(" shown")
    return ", ".join(part for part in (effect, doubt) if part)
