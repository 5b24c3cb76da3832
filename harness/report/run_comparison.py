"""A comparison of runs as a page.

Method: the words are those of ``run_comparison_text``; the page is one self-contained file in the
manner of a report (``html.render``), with a picture of the ratios and their intervals; it is
written last and moved into place. Not covered: the evidence of single trials, which each run's own
report holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.analysis.gate import GateResult
from harness.analysis.rows import EXACT
from harness.analysis.run_comparison import METHODS, RunComparison, VariantComparison
from harness.errors import StoreError
from harness.report import evidence, html, tables
from harness.report.charts import Chart
from harness.report.charts.run_ratios import MAX_MARKS, RatioMark, RatioPanel, run_ratios
from harness.report.plate import Plate, plate
from harness.report.run_comparison_text import HEADLINE, RunComparisonText, run_comparison_text
from harness.report.workload_names import name_among
from harness.scenario.load import slugify
from harness.store import write_whole
from harness.units import format_ratio_range

PAGE = "compare.html"
#: Where comparisons lie, under the root of reports.
FOLDER = "compare"
_LONGEST_FOLDER = 120


def page_folder(run_comparison: RunComparison, root: Path) -> Path:
    """Where the page of these runs lies; names from records can't lead out of ``root``."""
    name = "-vs-".join(slugify(run.bench.run_id) for run in run_comparison.runs)
    if len(name) > _LONGEST_FOLDER:
        # As many runs as one likes: the rest of a name that is too long becomes its digest.
        name = f"{name[: _LONGEST_FOLDER - 13]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return root / FOLDER / name


def write_page(
    run_comparison: RunComparison,
    gate: GateResult | None,
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
        chart = _chart(run_comparison)
        drawn = plate(chart, folder) if chart is not None else None
        path = folder / PAGE
        text = run_comparison_text(run_comparison, gate)
        write_whole(path, _page(text, drawn, run_dirs, command))
        return path
    except OSError as error:
        raise StoreError(f"can't write the page: {error.strerror}", where=str(folder)) from error


def _page(
    text: RunComparisonText,
    drawn: Plate | None,
    run_dirs: Sequence[Path],
    command: Sequence[str],
) -> str:
    context: dict[str, Any] = {
        "text": text,
        "scenarios": list(dict.fromkeys(run.scenario for run in text.runs)),
        "profiles": list(dict.fromkeys(run.profile for run in text.runs)),
        "plate": drawn,
        "svg": html.own(drawn.picture.inline_svg) if drawn is not None else "",
        "methods": METHODS,
        "command": evidence.in_clone(command),
        "reports": [evidence.in_clone(["kvbench", "report", str(run)]) for run in run_dirs],
    }
    return html.render("compare.html.j2", context)


# ── the picture ─────────────────────────────────────────────────────────────────────────────


def _chart(run_comparison: RunComparison) -> Chart | None:
    """Every ratio that may be drawn, in the order of the opening; None where there is none."""
    panels = tuple(
        RatioPanel(_panel_title(run_comparison, metric), marks[:MAX_MARKS])
        for metric in HEADLINE
        if (marks := tuple(_marks(run_comparison, metric)))
    )
    if not panels:
        return None
    return Chart(
        "ratios",
        "What changed against run A: ratios with their 95 % intervals",
        "Each mark is one run's figure over run A's, under the same variant and load; lines are "
        "95 % intervals, the dotted line is no change. A hollow mark has no interval: it is one "
        "observation.",
        "; ".join(_panel_alt(panel) for panel in panels),
        lambda: run_ratios(panels),
    )


def _marks(run_comparison: RunComparison, metric: str) -> Iterator[RatioMark]:
    for load in run_comparison.loads:
        row = load.comparison.row(metric) if load.comparison is not None else None
        for cell in row.cells if row is not None else ():
            if cell.is_baseline or cell.ratio is None or cell.verdict == "invalid":
                continue
            place = next(
                i for i, run in enumerate(run_comparison.runs) if run.label == cell.variant
            )
            ends = (cell.interval.low, cell.interval.high) if cell.interval else (None, None)
            name = _mark_name(run_comparison, load, cell.variant)
            yield RatioMark(name, place, cell.ratio, *ends, exact=metric in EXACT)


def _mark_name(run_comparison: RunComparison, load: VariantComparison, run: str) -> str:
    """Short where a load's own name tells it apart, or there is no other."""
    if len({other.workload_label for other in run_comparison.loads}) == 1:
        return f"{run}: {load.variant}"
    every = [other.workload for other in run_comparison.loads]
    return f"{run}: {load.variant} · {name_among(load.workload, load.workload_label, every)}"


def _panel_title(run_comparison: RunComparison, metric: str) -> str:
    row = next(
        found
        for load in run_comparison.loads
        if load.comparison is not None and (found := load.comparison.row(metric)) is not None
    )
    better = f" ({row.better} is better)" if row.better else ""
    return f"{tables.LABELS.get(metric, row.label)}{better}"


def _panel_alt(panel: RatioPanel) -> str:
    marks = (f"{m.name} {format_ratio_range(m.ratio, m.low, m.high)}" for m in panel.marks)
    return f"{panel.title}: {', '.join(marks)}"
