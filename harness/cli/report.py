"""``kvbench report``: rebuild a report from ``results/`` alone; no GPU, no vLLM, no network.

``--export`` and ``--export-requests`` write the same run for other programs, before the page is
drawn, so that a target that can't be written is told at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.analysis.compare import analyse, to_json
from harness.analysis.results import Analysis
from harness.analysis.scoreboard import scoreboard as join
from harness.cli.outcome import check_something_measured, strict_exit
from harness.cli.runs import find, find_measured
from harness.errors import InputError
from harness.record import BenchRecord, TrialRecord
from harness.report import export as exports
from harness.report.build import REPORTS_ROOT, build_report_of
from harness.report.scoreboard import print_scoreboard, write_scoreboard
from harness.report.terminal import print_result
from harness.store import DEFAULT_ROOT, read_bench, read_quality


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
    export: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.json|FILE.csv|FOLDER/",
            help="Also write the trials, in the names of `vllm bench serve`.",
        ),
    ] = None,
    export_requests: Annotated[
        str | None, typer.Option(metavar="FILE.csv", help="Also write every request.")
    ] = None,
    detailed: Annotated[
        bool, typer.Option("--detailed", help="With per-request lists in exported JSON.")
    ] = False,
) -> None:
    """Rebuild the report of a stored run and print its table, or join runs into a scoreboard."""
    wanted = _Wanted(tuple(export or ()), export_requests, detailed=detailed)
    if scoreboard:
        wanted.refuse("a scoreboard")
        _scoreboard([find_measured(run, out) for run in runs], reports, as_json=as_json)
        return
    if len(runs) > 1:
        raise InputError(
            "a report is about one run",
            legal=["kvbench report RUN", "kvbench report --scoreboard RUN…"],
        )
    folder = find(runs[0], out)
    wanted.check(folder)
    record, trials = read_bench(folder)
    analysis = analyse(record, trials, read_quality(folder))
    exported = wanted.write(record, trials, analysis)
    paths = build_report_of(record, trials, analysis, run_dir=folder, reports_root=reports)
    if as_json:
        figures = to_json(analysis)
        places = {"run": str(folder), "report": str(paths.html)}
        files = {"exports": [str(path) for path in exported]} if exported else {}
        typer.echo(json.dumps({**figures, **places, **files}, indent=2))
    else:
        print_result(analysis, paths.html, Console(highlight=False), paths.leads)
        for path in exported:
            typer.echo(f"export: {path}")
    check_something_measured(analysis)
    if strict:
        strict_exit(analysis)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The exports that were asked for."""

    trials: tuple[str, ...]
    requests: str | None
    detailed: bool

    def refuse(self, what: str) -> None:
        if self.trials or self.requests or self.detailed:
            raise InputError(
                f"{what} has no export", next_move="use --json, or export each run by itself"
            )

    def check(self, run_dir: Path) -> None:
        if self.detailed and all(target.lower().endswith(".csv") for target in self.trials):
            raise InputError(
                "--detailed adds lists to exported JSON, and none was asked for",
                legal=["--export FILE.json --detailed", "--export FOLDER/ --detailed"],
            )
        targets = [target for target in (*self.trials, self.requests) if target]
        if len({Path(target).resolve() for target in targets}) < len(targets):
            raise InputError(
                "two exports can't go to one place",
                where=", ".join(targets)[:300],
                next_move="give each export a name of its own",
            )
        for target in self.trials:
            exports.check_target(target, run_dir)
        if self.requests is not None:
            exports.check_target(self.requests, run_dir, exports.REQUEST_FORMS)

    def write(
        self, bench: BenchRecord, trials: Sequence[TrialRecord], analysis: Analysis
    ) -> tuple[Path, ...]:
        for target in self.trials:
            exports.export_trials(target, bench, trials, analysis, detailed=self.detailed)
        if self.requests is not None:
            exports.export_requests(self.requests, bench, trials, analysis)
        return tuple(Path(target) for target in (*self.trials, self.requests) if target)


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
