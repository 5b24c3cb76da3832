"""The short tables that a bench prints when it ends, and a comparison of runs.

Method: the same words and figures as the page's opening and scoreboard, the rows that decide
alone, one block per workload; drawn by rich to the width of the terminal, plain where the output
is no terminal. Not covered: evidence, definitions and doubts in full, which are in the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.results import Analysis
from harness.characters import printable
from harness.record import ATTACHED
from harness.report.run_comparison_text import PairText, RunComparisonText
from harness.report.sentence import answer
from harness.report.tables import CellText, RowText, TableText, table
from harness.units import DASH, counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: More tables than these scroll the answer away.
MAX_TABLES = 4
#: The same where runs are compared.
MAX_PAIRS = 6
#: Wider than any table, for finding out how wide one wants to be.
_UNBOUND = 10_000
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
    taken = "ATTACHED" if analysis.profile == ATTACHED else f"{analysis.profile.upper()} profile"
    out.print(Text(printable(f"{taken}  {analysis.scenario}"), style="bold"))
    for comparison in analysis.comparisons[:MAX_TABLES]:
        print_table(table(comparison), out)
    if len(analysis.comparisons) > MAX_TABLES:
        rest = len(analysis.comparisons) - MAX_TABLES
        more = counted(rest, "more load")
        out.print(Text(f"… and {more}, in the report", style="dim"))
    for lead in (*leads, found.lead):
        out.print(Text(printable(lead), style="bold"))
    for point in found.points:
        out.print(Text(printable(f" • {point}")))
    for limit in found.limits:
        out.print(Text(printable(f" ! {limit}"), style="yellow"))
    if report is not None:
        out.print(Text(printable(f"report: {report}")), soft_wrap=True)


def print_table(text: TableText, console: Console) -> None:
    """One load: the rows that decide, in as many tables as the width asks for, and every doubt.

    Nothing is cut. Variants that left no figure have no column but a line that names them.
    """
    from rich.text import Text

    rows = tuple(row for row in text.rows if row.metric in ROWS)
    measured = [name for name in text.variants if _is_measured(name, rows)]
    shown = _only(text, rows, measured or list(text.variants))
    for part in _parts(shown, console):
        console.print(draw_table(part))
    absent = [name for name in text.variants if name not in shown.variants]
    absent += text.left_out
    told = [f"without a figure under this load: {', '.join(absent)}"] if absent else []
    told += [f"[{note.number}] {note.text}" for note in shown.notes]
    if rest := len(text.notes) - len(shown.notes):
        told.append(f"{counted(rest, 'more doubt')} about other figures: in the report")
    for line in told:
        console.print(Text(printable(f" {line}"), style="dim"))


def _is_measured(name: str, rows: Sequence[RowText]) -> bool:
    cells = [cell for row in rows for cell in row.cells if cell.variant == name]
    return any(cell.value != DASH for cell in cells)


def _only(text: TableText, rows: Sequence[RowText], names: Sequence[str]) -> TableText:
    """The same table with these rows and columns alone, and the doubts that they point at."""
    kept = tuple(
        replace(row, cells=tuple(cell for cell in row.cells if cell.variant in names))
        for row in rows
    )
    return replace(text, variants=tuple(names), rows=kept, more=(), notes=text.notes_of(kept))


def _parts(text: TableText, console: Console) -> list[TableText]:
    """Tables that fit the width whole: each holds the baseline and some of the others."""
    first, *others = text.variants
    for count in range(len(others), 0, -1):
        groups = [others[at : at + count] for at in range(0, len(others), count)]
        parts = [_only(text, text.rows, [first, *group]) for group in groups]
        if count == 1 or all(_fits(part, console) for part in parts):
            return parts
    return [text]


def _fits(text: TableText, console: Console) -> bool:
    from rich.measure import Measurement

    drawn = draw_table(text, whole=True)
    unbound = console.options.update(width=_UNBOUND)
    return Measurement.get(console, unbound, drawn).maximum <= console.width


def draw_table(text: TableText, *, whole: bool = False) -> Table:
    """The rows of ``text`` as one table; every text is made harmless, and wrapped, never cut.

    ``whole`` keeps each line of a cell in one piece, for finding out how wide that is.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    two = len(text.variants) == 2
    title = Text(printable(text.label), style="bold")
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("", overflow="fold", min_width=12, max_width=None if two else 13)
    for variant in text.variants:
        name = Text(printable(variant))
        drawn.add_column(name, justify="right", overflow="fold", no_wrap=whole)
    if two:
        drawn.add_column("ratio [95 %]", justify="right", overflow="fold", no_wrap=True)
        drawn.add_column("verdict", overflow="fold")
    for row in text.rows:
        drawn.add_row(*(Text(printable(cell)) for cell in _cells(row, two=two)))
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
    # The interval and the doubt on lines of their own: columns of many variants are narrow.
    ratio = cell.ratio.replace(" [", "\n[")
    verdict = _verdict(cell).replace(", ", ",\n")
    return "\n".join(part for part in (_value(cell), ratio, verdict) if part)


def _verdict(cell: CellText) -> str:
    doubt = "suspect" if cell.judgement == "suspect" else ""
    effect = cell.effect.removesuffix(" shown")
    return ", ".join(part for part in (effect, doubt) if part)


# ── several runs ────────────────────────────────────────────────────────────────────────────


def print_run_comparison(text: RunComparisonText, page: Path, console: Console) -> None:
    """Print runs, differences, tables and the gate's answer, and where the page lies."""
    from rich.text import Text

    def line(words: str, tone: str = "") -> None:
        console.print(Text(printable(words), style=tone), soft_wrap=True)

    for run in text.runs:
        role = " (baseline)" if run is text.runs[0] else ""
        line(
            f"{run.label}{role}: {run.scenario} {run.run_id}, {run.profile}, {run.device}, "
            f"{run.model}, {run.engine}, commit {run.commit}; trials: {run.trials}",
            "bold",
        )
    for one in text.differences:
        values = " | ".join(one.values)
        line(f"  differs{', unlike' if one.refused else ''}: {one.key}: {values}")
    if not text.differences:
        line("  nothing differs that the records tell")
    for pair in text.pairs[:MAX_PAIRS]:
        _print_pair(pair, console)
    if len(text.pairs) > MAX_PAIRS:
        line(f"… and {len(text.pairs) - MAX_PAIRS} more, in the page", "dim")
    line(text.lead, "bold")
    for point in text.points:
        line(f" • {point}")
    for limit in text.limits:
        line(f" ! {limit}", "yellow")
    _print_gate(text, console)
    line(f"page: {page}")


def _print_pair(pair: PairText, console: Console) -> None:
    from rich.text import Text

    if pair.table is not None:
        print_table(pair.table, console)
    else:
        console.print(Text(printable(f"{pair.variant} · {pair.load}"), style="bold"))
    ends = f" trials: {'; '.join(pair.ends)}; {pair.method}"
    console.print(Text(printable(ends), style="dim"), soft_wrap=True)


def _print_gate(text: RunComparisonText, console: Console) -> None:
    from rich.text import Text

    if text.gate_answer is None:
        return
    tone = {"good": "bold green", "bad": "bold red"}.get(text.gate_tone, "bold yellow")
    for check in text.checks:
        where = f"{check.run}, {check.variant} · {check.load}"
        why = f"{check.change}: {check.reason}"
        words = f" {check.verdict}: {check.rule} ({where}): {why}"
        console.print(Text(printable(words)), soft_wrap=True)
        for doubt in check.doubts:
            console.print(Text(printable(f"   suspect: {doubt}"), style="dim"), soft_wrap=True)
    console.print(Text(printable(text.gate_answer), style=tone), soft_wrap=True)
