"""``kvbench report``: rebuild a report from ``results/`` alone; no GPU, no vLLM, no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.analysis.compare import analyse, to_json
from harness.cli.outcome import strict_exit
from harness.report.build import build_report
from harness.report.terminal import print_result
from harness.store import DEFAULT_ROOT, find_run, read_bench, read_quality

REPORTS_ROOT = Path("reports")


def report(
    run: Annotated[str, typer.Argument(help="A run's folder, its id, or a scenario's name.")],
    out: Annotated[Path, typer.Option(help="Where runs are stored.")] = DEFAULT_ROOT,
    reports: Annotated[Path, typer.Option(help="Where the report goes.")] = REPORTS_ROOT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    strict: Annotated[bool, typer.Option(help="Exit 1 if a number is invalid.")] = False,
) -> None:
    """Rebuild the report of a stored run and print its table."""
    folder = find_run(run, out)
    record, trials = read_bench(folder)
    analysis = analyse(record, trials, read_quality(folder))
    paths = build_report(folder, reports_root=reports)
    if as_json:
        figures = to_json(analysis)
        typer.echo(json.dumps({**figures, "run": str(folder), "report": str(paths.html)}, indent=2))
    else:
        print_result(analysis, paths.html, Console(highlight=False), paths.leads)
    if strict:
        strict_exit(analysis)
