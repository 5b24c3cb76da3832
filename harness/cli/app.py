"""``kvbench``: the commands joined, and the one place where errors become exit codes.

Exit codes: 0 done; 1 a trial failed, nothing could be measured, a gate tripped or ``--strict``
found an invalid number; 2 bad input; 3 a gate is inconclusive; 130 interrupted. Figures asked
for as JSON go to standard output alone; progress, warnings and errors go to standard error.
"""

from __future__ import annotations

import sys

import typer

from harness import __version__
from harness.cli import model
from harness.cli.bench import bench
from harness.cli.calc import calc
from harness.cli.doctor import doctor
from harness.cli.plan import plan
from harness.cli.report import report
from harness.errors import KvbenchError

INTERRUPTED = 130

app = typer.Typer(
    name="kvbench",
    help="Measure what each KV-cache strategy buys on vLLM, and hold it against theory.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.command()(plan)
app.command()(bench)
app.command()(report)
app.command()(calc)

app.command()(doctor)
app.add_typer(model.app, name="model")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kvbench {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
) -> None:
    """Nothing is done here but ``--version``."""


def main() -> None:
    """Run the command line and turn errors into messages and exit codes."""
    try:
        app()
    except KvbenchError as error:
        typer.echo(f"kvbench: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("kvbench: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output left early (`| head`); nothing is wrong.
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
