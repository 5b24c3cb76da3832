"""``kvbench``: the commands joined, and the one place where errors become exit codes.

Exit codes: 0 done; 1 a trial failed, nothing could be measured, a gate tripped or ``--strict``
found an invalid number; 2 bad input; 3 a gate is inconclusive; 130 interrupted. Figures asked for
as JSON go to standard output alone; progress, warnings and errors to standard error.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import typer

from harness import __version__
from harness.characters import printable
from harness.cli import streams
from harness.errors import KvbenchError

INTERRUPTED = 130
FAILED = 1

#: Where each command lives, in the order of the help. A module is loaded when its command (or
#: the help of all) is asked for: `kvbench calc` must not wait for what a bench needs.
COMMANDS = {
    "plan": "harness.cli.plan",
    "bench": "harness.cli.bench",
    "report": "harness.cli.report",
    "compare": "harness.cli.compare",
    "calc": "harness.cli.calc",
    "advise": "harness.cli.advise",
    "judge": "harness.cli.judge",
    "model": "harness.cli.model",
    "doctor": "harness.cli.doctor",
}


def build(words: Sequence[str]) -> typer.Typer:
    """The command line that ``words`` need: one command, or all where none is named."""
    app = typer.Typer(
        name="kvbench",
        help="Measure what each KV-cache strategy buys on vLLM, and hold it against theory.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,
    )
    app.callback()(_common)
    asked = next((word for word in words if not word.startswith("-")), None)
    for name in [asked] if asked in COMMANDS else COMMANDS:
        module = import_module(COMMANDS[name])
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    return app


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kvbench {__version__}")
        raise typer.Exit


def _common(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
) -> None:
    """Nothing is done here but ``--version``."""


def main() -> None:
    """Run the command line and turn errors into messages and exit codes."""
    streams.secure()
    try:
        build(sys.argv[1:])()
    except KvbenchError as error:
        _end(str(error), error.exit_code)
    except KeyboardInterrupt:
        _end("interrupted", INTERRUPTED)
    except SystemExit as end:
        # Typer makes exit 1, which means a failure here, of a reader who left early (`| head`).
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        streams.abandon()
        sys.exit(0)
    except OSError as error:
        # The machine said no (a full disk, a folder that may not be read) where nobody foresaw it.
        place = f"{error.filename}: " if error.filename else ""
        _end(f"{place}{error.strerror or error}", FAILED)


def _end(message: str, exit_code: int) -> NoReturn:
    with contextlib.suppress(OSError):
        typer.echo(printable(f"kvbench: {message}"), err=True)
    streams.abandon()
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
