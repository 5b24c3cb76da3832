"""``kvbench bench``: run a scenario, write its report, print its table."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from harness.analysis.compare import analyse, to_json
from harness.analysis.results import Analysis
from harness.cli import scenarios
from harness.cli.outcome import check_measured, strict_exit
from harness.cli.plan import estimate_text
from harness.cli.progress import BenchProgress
from harness.execute.adaptive import Until
from harness.execute.estimate import estimate
from harness.execute.local import run_scenario
from harness.report.build import REPORTS_ROOT, build_report_of, check_writable
from harness.report.evidence import time_text
from harness.report.terminal import print_result
from harness.shell import own_program, shell_line
from harness.store import DEFAULT_ROOT, read_bench, read_quality

#: SIGHUP comes when the terminal or the ssh connection goes; ignored (nohup), it stays ignored.
_ENDING = tuple(
    number
    for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
    if signal.getsignal(number) is not signal.SIG_IGN
)
#: What an interrupted bench is told.
_GO_ON = "what was measured is kept, and the same command with --resume goes on from there"


def bench(
    scenario: Annotated[str, typer.Argument(help="Name in scenarios/, or a YAML file.")],
    profile: Annotated[str | None, typer.Option(help="cpu or cuda; detected if left out.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY.PATH=VALUE", help="Laid over the scenario; repeatable."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Measure a running server (http://host:port/v1) instead.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Server launches per variant.")] = None,
    until_width: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Add repeats until every throughput ratio's 95 % interval is at most this wide "
            "(0.1 is 10 %).",
        ),
    ] = None,
    max_repeats: Annotated[int, typer.Option(min=1, help="The cap of --until-width.")] = 9,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    out: Annotated[Path, typer.Option(help="Where runs are stored.")] = DEFAULT_ROOT,
    reports: Annotated[Path, typer.Option(help="Where the report goes.")] = REPORTS_ROOT,
    load_workers: Annotated[int, typer.Option(min=1, help="Client processes.")] = 1,
    strict: Annotated[bool, typer.Option(help="Exit 1 if a number is invalid.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure every variant of a scenario on a real server and report what it buys."""
    overrides = [*(set_ or ()), *([f"repeats={repeats}"] if repeats is not None else ())]
    resolved = scenarios.load(scenario, profile, overrides, url)
    scenarios.check_device(resolved)
    expected = estimate(resolved, out)
    check_writable(reports)
    typer.echo(f"{resolved.name}: {estimate_text(expected)}", err=True)
    with (
        _sigterm_as_interrupt(_GO_ON),
        BenchProgress(expected.total_s, skips=expected.skips) as progress,
    ):
        folder = run_scenario(
            resolved,
            root=out,
            command=["kvbench", *sys.argv[1:]],
            progress=progress,
            resume=resume,
            load_workers=load_workers,
            until=None if until_width is None else Until(until_width, max_repeats),
        )
    again = f"{own_program()} {shell_line(['report', str(folder)])}"
    with _sigterm_as_interrupt(f"everything was measured; `{again}` tells it"):
        _tell(folder, reports, as_json=as_json, strict=strict)


def _tell(folder: Path, reports: Path, *, as_json: bool, strict: bool) -> None:
    began = time.monotonic()
    record, trials = read_bench(folder)
    analysis = analyse(record, trials, read_quality(folder))
    paths = build_report_of(record, trials, analysis, run_dir=folder, reports_root=reports)
    report_s = time.monotonic() - began
    if as_json:
        figures = to_json(analysis)
        typer.echo(json.dumps({**figures, "run": str(folder), "report": str(paths.html)}, indent=2))
    else:
        print_result(analysis, paths.html, Console(highlight=False), paths.leads)
        typer.echo(f"results: {folder}")
    typer.echo(f"took {time_text(record, report_s)}", err=True)
    _exit(analysis, strict)


def _exit(analysis: Analysis, strict: bool) -> None:
    check_measured(analysis)
    if strict:
        strict_exit(analysis)


@contextmanager
def _sigterm_as_interrupt(kept: str) -> Iterator[None]:
    """Let SIGTERM, and a terminal that is closed, end a bench as Ctrl-C does.

    The server is stopped, results are kept (``kept`` says how to use them), the exit code is 130.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"kvbench: interrupted; {kept}", err=True)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
