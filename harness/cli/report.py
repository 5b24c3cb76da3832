"""``kvbench report``: rebuild a report from ``results/`` alone; no GPU, no vLLM, no network."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.analysis.compare import analyse, to_json
from harness.analysis.scoreboard import scoreboard as join
from harness.cli.outcome import strict_exit
from harness.errors import InputError
from harness.report.build import build_report
from harness.report.scoreboard import print_scoreboard, write_scoreboard
from harness.report.terminal import print_result
from harness.store import DEFAULT_ROOT, find_run, read_bench, read_quality

REPORTS_ROOT = Path("reports")


def report(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN…", help="A run's folder, id, or scenario's name.")
    ],
    scoreboard: Annotated[
        bool, typer.Option("--scoreboard", help="One table of all strategies of these runs.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where runs are stored.")] = DEFAULT_ROOT,
    reports: Annotated[Path, typer.Option(help="Where the report goes.")] = REPORTS_ROOT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    strict: Annotated[bool, typer.Option(help="Exit 1 if a number is invalid.")] = False,
) -> None:
    """Rebuild the report of a stored run and print its table, or join runs into a scoreboard."""
    if scoreboard:
        _scoreboard([find_run(run, out) for run in runs], reports, as_json=as_json)
        return
    if len(runs) > 1:
        raise InputError(
            "a report is about one run",
            legal=["kvbench report RUN", "kvbench report --scoreboard RUN…"],
        )
    folder = find_run(runs[0], out)
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


def _scoreboard(folders: list[Path], reports: Path, *, as_json: bool) -> None:
    pairs = []
    for folder in dict.fromkeys(folders):
        record, trials = read_bench(folder)
        pairs.append((record, analyse(record, trials, read_quality(folder))))
    board = join(pairs)
    page, png = write_scoreboard(board, reports / "scoreboard" / board.profile)
    if as_json:
        typer.echo(json.dumps({**asdict(board), "report": str(page), "png": str(png)}, indent=2))
    else:
        print_scoreboard(board, page, Console(highlight=False))
