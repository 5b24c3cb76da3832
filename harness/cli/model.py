"""``kvbench model``: prepare an embedded model, or tell where it lies."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.engines import embedded
from harness.errors import NotFound

app = typer.Typer(no_args_is_help=True, help="Prepare an embedded model and print its folder.")

Name = Annotated[str, typer.Argument(help=f"One of: {', '.join(embedded.EMBEDDED)}.")]


@app.command()
def fetch(name: Name) -> None:
    """Fetch and convert a model unless it is there and whole; print its folder."""
    folder = embedded.ensure(name, progress=lambda step: typer.echo(step, err=True))
    typer.echo(folder)


@app.command()
def path(name: Name) -> None:
    """Print the folder of a prepared model; exit code 2 if it is not prepared."""
    folder = embedded.path(name)
    if folder is None:
        raise NotFound(
            f"{name} is not prepared, or its folder is not whole",
            where=str(embedded.cache_root()),
            next_move=f"kvbench model fetch {name}",
        )
    typer.echo(folder)
