"""A stored run → its page and pictures, in ``reports/<scenario>/<run-id>/``.

Method: read the run back, analyse it anew, draw the charts, fill the template; the page is
written last and moved into place, so that a page that exists is whole. Works on any machine and
any day from ``results/`` alone; trials that failed, were skipped or never finished are shown as
such. Not covered: comparing several runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import store
from harness.analysis.compare import analyse
from harness.analysis.results import Analysis
from harness.errors import StoreError
from harness.record import BenchRecord, TrialRecord
from harness.report import gallery, html
from harness.report.section import drawn_sections
from harness.scenario.load import slugify
from harness.shell import own_program, shell_line

REPORTS_ROOT = Path("reports")
PAGE = "report.html"


@dataclass(frozen=True, slots=True)
class ReportPaths:
    """What was written: the page, each chart as PNG and as SVG; the sections' findings."""

    html: Path
    pngs: tuple[Path, ...]
    svgs: tuple[Path, ...] = ()
    leads: tuple[str, ...] = ()


def build_report(run_dir: Path, *, reports_root: Path | None = None) -> ReportPaths:
    """Write the report of the run stored in ``run_dir``.

    Raises:
        NotFound: the folder holds no run.
        StoreError: the run can't be read, or the report can't be written.
    """
    bench, trials = store.read_bench(run_dir)
    analysis = analyse(bench, trials, store.read_quality(run_dir))
    return build_report_of(bench, trials, analysis, run_dir=run_dir, reports_root=reports_root)


def build_report_of(
    bench: BenchRecord,
    trials: Sequence[TrialRecord],
    analysis: Analysis,
    *,
    run_dir: Path,
    reports_root: Path | None = None,
) -> ReportPaths:
    """The same of a run that was read already: one of many requests is too large to read twice.

    Raises:
        StoreError: the report can't be written.
    """
    folder = report_folder(bench, reports_root or REPORTS_ROOT)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write_report(bench, trials, analysis, run_dir=run_dir, folder=folder)
    except OSError as error:
        again = f"{own_program()} {shell_line(['report', str(run_dir)])} --reports DIR"
        raise _cannot_write(folder, error, f"the run is kept; `{again}` tells it") from error


def check_writable(root: Path) -> None:
    """Find out before a long bench, not after it, that no report can be written.

    Raises:
        StoreError: ``root`` can't be made, or not written into.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise _cannot_write(root, error, "name another folder with --reports") from error


def _cannot_write(folder: Path, error: OSError, next_move: str) -> StoreError:
    what = f"can't write the report: {error.strerror}"
    return StoreError(what, where=str(folder), next_move=next_move)


def report_folder(bench: BenchRecord, root: Path) -> Path:
    """Where the report of a run lies; names from the record can't lead out of ``root``."""
    return root / slugify(bench.scenario_name) / slugify(bench.run_id)


def write_report(
    bench: BenchRecord,
    trials: Sequence[TrialRecord],
    analysis: Analysis,
    *,
    run_dir: Path,
    folder: Path,
) -> ReportPaths:
    """Draw and write everything of one report into an existing folder."""
    for stale in (*folder.glob("*.png"), *folder.glob("*.svg")):
        stale.unlink()
    plates = gallery.plates(analysis, trials, folder)
    sections = drawn_sections(bench, trials, analysis, folder)
    page = html.page(bench, trials, analysis, plates, sections, run_dir=run_dir, folder=folder)
    path = folder / PAGE
    store.write_whole(path, page)
    all_plates = [*plates, *(plate for drawn in sections for plate in drawn.plates)]
    return ReportPaths(
        html=path,
        pngs=tuple(plate.picture.png for plate in all_plates),
        svgs=tuple(plate.picture.svg for plate in all_plates),
        leads=tuple(drawn.section.lead for drawn in sections),
    )
