"""``kvbench compare``: stored runs side by side, and a gate that a build can stand on.

Exit codes: 0 done, or the gate passes; 1 it fails; 2 bad input (unlike runs, a run that is not
there or can't be read, a rule that can't be, a page or an answer that can't be written); 3 it is
inconclusive.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.analysis.gate import GateResult, Rule, decide, parse_rule
from harness.analysis.run_comparison import RunComparison, compare_runs
from harness.analysis.run_comparison_json import run_comparison_json
from harness.cli import streams
from harness.cli.runs import find_measured
from harness.errors import InputError, StoreError
from harness.report.build import REPORTS_ROOT, check_writable
from harness.report.markdown import markdown
from harness.report.run_comparison import page_folder, write_page
from harness.report.run_comparison_text import run_comparison_text
from harness.report.terminal import print_run_comparison
from harness.store import DEFAULT_ROOT, read_bench


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_A RUN_B [RUN…]",
            help="Folders, ids, or scenarios' names (the latest run); the first is the baseline.",
        ),
    ],
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            metavar="RULE",
            help="A change that trips the gate, such as 'output_throughput<-5%'; repeatable.",
        ),
    ] = None,
    gate_variant: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Put the rules to this variant alone; repeatable."),
    ] = None,
    gate_load: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Put the rules to this load alone; repeatable."),
    ] = None,
    force_unlike: Annotated[
        bool,
        typer.Option(
            "--force-unlike",
            help="Compare runs of unlike profiles, engines, models or loads; of two profiles only "
            "what the engine granted.",
        ),
    ] = False,
    out: Annotated[Path, typer.Option(help="Where runs are stored.")] = DEFAULT_ROOT,
    reports: Annotated[Path, typer.Option(help="Where the page goes.")] = REPORTS_ROOT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print GitHub markdown, for a pull request.")
    ] = False,
) -> None:
    """Hold stored runs against the first of them, and answer a regression gate if one is asked."""
    if as_json and as_markdown:
        raise InputError("one output at a time", legal=["--json", "--markdown"])
    rules = [parse_rule(text) for text in fail_on or ()]
    if (gate_variant or gate_load) and not rules:
        raise InputError(
            "there is no gate to narrow", next_move="give it a rule: --fail-on 'METRIC<-5%'"
        )
    folders = [find_measured(run, out) for run in runs]
    with _never_a_failed_gate():
        check_writable(reports)
        stored = [read_bench(folder) for folder in folders]
    run_comparison = compare_runs(stored, force_unlike=force_unlike)
    gate = _answer(run_comparison, rules, gate_variant or (), gate_load or ())
    with _never_a_failed_gate():
        place = page_folder(run_comparison, reports)
        command = ["kvbench", *sys.argv[1:]]
        page = write_page(run_comparison, gate, place, run_dirs=folders, command=command)
        _tell(run_comparison, gate, page, folders, as_json=as_json, as_markdown=as_markdown)
    if gate is not None:
        raise typer.Exit(gate.exit_code)


def _answer(
    run_comparison: RunComparison,
    rules: Sequence[Rule],
    variants: Sequence[str],
    loads: Sequence[str],
) -> GateResult | None:
    return decide(run_comparison, rules, variants=variants, loads=loads) if rules else None


@contextlib.contextmanager
def _never_a_failed_gate() -> Iterator[None]:
    """What can't be read or written is bad input: by exit 1 a build would read a regression.

    A reader who leaves early (``| head``) changes no answer.
    """
    try:
        yield
    except BrokenPipeError:
        streams.abandon()
    except SystemExit as left:  # rich ends the program for a reader who has left
        if not isinstance(left.__context__, BrokenPipeError):
            raise
        streams.abandon()
    except OSError as error:
        raise InputError(
            f"can't tell the answer: {error.strerror or error}", where=error.filename
        ) from error
    except StoreError as error:
        raise InputError(
            error.what,
            where=error.where,
            legal=error.legal,
            next_move=error.next_move,
            evidence=error.evidence,
        ) from error


def _tell(
    run_comparison: RunComparison,
    gate: GateResult | None,
    page: Path,
    folders: list[Path],
    *,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Standard output holds what was asked for and nothing else."""
    text = run_comparison_text(run_comparison, gate)
    if as_json:
        figures = run_comparison_json(run_comparison, gate)
        paths = {"page": str(page), "folders": [str(folder) for folder in folders]}
        typer.echo(json.dumps({**figures, **paths}, indent=2, allow_nan=False))
    elif as_markdown:
        typer.echo(markdown(text), nl=False)
    else:
        print_run_comparison(text, page, Console(highlight=False))
        return
    if text.gate_answer is not None:
        typer.echo(text.gate_answer, err=True)
    typer.echo(f"page: {page}", err=True)
