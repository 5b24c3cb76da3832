"""A comparison of runs as a page and on a terminal.

Method: the words are those of ``across_text``; the page is one self-contained file in the manner
of a report (``html.render``), with a picture of the ratios and their intervals; it is written last
and moved into place. Not covered: the evidence of single trials, which each run's own report holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.across import METHODS, Across, LoadAcross
from harness.analysis.gate import Gate
from harness.analysis.rows import EXACT
from harness.characters import printable
from harness.errors import StoreError
from harness.report import evidence, html, style, tables
from harness.report.across_text import HEADLINE, AcrossText, PairText, across_text
from harness.report.names import name_among
from harness.report.terminal import print_table
from harness.scenario.load import slugify
from harness.store import write_whole
from harness.units import format_ratio_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

PAGE = "compare.html"
#: Where comparisons lie, under the root of reports.
FOLDER = "compare"
#: Tables on a terminal; more scroll the answer away.
MAX_TABLES = 6
#: Marks in one panel of the picture that a reader can still name.
MAX_MARKS = 14
_LONGEST_FOLDER = 120


def page_folder(across: Across, root: Path) -> Path:
    """Where the page of these runs lies; names from records can't lead out of ``root``."""
    name = "-vs-".join(slugify(run.bench.run_id) for run in across.runs)
    if len(name) > _LONGEST_FOLDER:
        # As many runs as one likes: the rest of a name that is too long becomes its digest.
        name = f"{name[: _LONGEST_FOLDER - 13]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return root / FOLDER / name


def write_page(
    across: Across,
    gate: Gate | None,
    folder: Path,
    *,
    run_dirs: Sequence[Path],
    command: Sequence[str],
) -> Path:
    """Write page and picture into ``folder`` and return the page.

    Raises:
        StoreError: the files can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in (*folder.glob("*.png"), *folder.glob("*.svg")):
            stale.unlink()
        picture = _picture(across, folder)
        path = folder / PAGE
        text = across_text(across, gate)
        write_whole(path, _page(across, text, picture, run_dirs, command))
        return path
    except OSError as error:
        raise StoreError(f"can't write the page: {error.strerror}", where=str(folder)) from error


def _page(
    across: Across,
    text: AcrossText,
    picture: style.Picture | None,
    run_dirs: Sequence[Path],
    command: Sequence[str],
) -> str:
    context: dict[str, Any] = {
        "text": text,
        "scenarios": list(dict.fromkeys(run.scenario for run in text.runs)),
        "profiles": list(dict.fromkeys(run.profile for run in text.runs)),
        "picture": picture,
        "svg": html.own(picture.inline_svg) if picture is not None else "",
        "alt": _alt(across),
        "methods": METHODS,
        "command": evidence.in_clone(command),
        "reports": [evidence.in_clone(["kvbench", "report", str(run)]) for run in run_dirs],
    }
    return html.render("compare.html.j2", context)


# ── the picture ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Mark:
    """One ratio in one panel."""

    name: str
    run: int
    ratio: float
    low: float | None
    high: float | None


def _marks(across: Across, metric: str) -> Iterator[_Mark]:
    for load in across.loads:
        row = load.comparison.row(metric) if load.comparison is not None else None
        for cell in row.cells if row is not None else ():
            if cell.is_baseline or cell.ratio is None or cell.verdict == "invalid":
                continue
            place = next(i for i, run in enumerate(across.runs) if run.label == cell.variant)
            ends = (cell.interval.low, cell.interval.high) if cell.interval else (None, None)
            yield _Mark(_mark_name(across, load, cell.variant), place, cell.ratio, *ends)


def _mark_name(across: Across, load: LoadAcross, run: str) -> str:
    """Short where a load's own name tells it apart, or there is no other."""
    if len({other.workload_label for other in across.loads}) == 1:
        return style.drawable(f"{run}: {load.variant}", 52)
    every = [other.workload for other in across.loads]
    told = name_among(load.workload, load.workload_label, every)
    return style.drawable(f"{run}: {load.variant} · {told}", 52)


def _picture(across: Across, folder: Path) -> style.Picture | None:
    panels = [
        (metric, marks[:MAX_MARKS])
        for metric in HEADLINE
        if (marks := list(_marks(across, metric)))
    ]
    if not panels:
        return None
    with style.drawing():
        title = "What changed against run A: ratios with their 95 % intervals"
        return style.write(_draw(across, panels), "ratios", title, folder)


def _draw(across: Across, panels: Sequence[tuple[str, Sequence[_Mark]]]) -> Figure:
    heights = [len(marks) + 1.6 for _, marks in panels]
    figure, grid = style.figure(
        0.6 + 0.27 * sum(heights),
        nrows=len(panels),
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
    )
    for row, (metric, marks) in zip(grid, panels, strict=True):
        _panel(row[0], across, metric, marks)
    return figure


def _panel(axes: Axes, across: Across, metric: str, marks: Sequence[_Mark]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.axvline(1.0, color=style.MUTED, linewidth=0.9, linestyle=":")
    for place, mark in enumerate(marks):
        tone = style.look(mark.run)
        if mark.low is not None and mark.high is not None:
            axes.plot([mark.low, mark.high], [place, place], color=style.INK, linewidth=1.6)
        axes.plot(
            mark.ratio,
            place,
            marker=tone.marker,
            markersize=6.5,
            linestyle="none",
            markeredgecolor=tone.color,
            markerfacecolor=tone.color if mark.low is not None or metric in EXACT else style.PAPER,
        )
    axes.set_yticks(range(len(marks)), [mark.name for mark in marks], fontsize=8)
    axes.set_ylim(len(marks) - 0.4, -0.6)
    axes.set_title(_panel_title(across, metric), fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlim(*_limits(marks))
    style.light_grid(axes, "x")


def _limits(marks: Sequence[_Mark]) -> tuple[float, float]:
    """At least 5 % to either side of 1, so that nothing looks like something."""
    ends = [1.0, *(end for m in marks for end in (m.ratio, m.low, m.high) if end is not None)]
    low, high = min(*ends, 0.95), max(*ends, 1.05)
    room = 0.04 * (high - low)
    return low - room, high + room


def _panel_title(across: Across, metric: str) -> str:
    row = next(
        found
        for load in across.loads
        if load.comparison is not None and (found := load.comparison.row(metric)) is not None
    )
    better = f" ({row.better} is better)" if row.better else ""
    return f"{tables.LABELS.get(metric, row.label)}{better}"


def _alt(across: Across) -> str:
    """What the picture shows, in words."""
    told = []
    for metric in HEADLINE:
        marks = list(_marks(across, metric))[:MAX_MARKS]
        if marks:
            lines = ", ".join(
                f"{m.name} {format_ratio_range(m.ratio, m.low, m.high)}" for m in marks
            )
            told.append(f"{_panel_title(across, metric)}: {lines}")
    return "; ".join(told)


# ── the terminal ────────────────────────────────────────────────────────────────────────────


def print_across(text: AcrossText, page: Path, console: Console) -> None:
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
    for pair in text.pairs[:MAX_TABLES]:
        _print_pair(pair, console)
    if len(text.pairs) > MAX_TABLES:
        line(f"… and {len(text.pairs) - MAX_TABLES} more, in the page", "dim")
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


def _print_gate(text: AcrossText, console: Console) -> None:
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
