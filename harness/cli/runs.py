"""From what the user typed to a stored run; says which where a later one measured nothing."""

from __future__ import annotations

from pathlib import Path

import typer

from harness.errors import InputError
from harness.store import find_run, runs_of, something_measured


def find(given: str, out: Path) -> Path:
    """The run's folder; a word on stderr if later runs were passed over.

    Raises:
        NotFound: nothing under ``out`` answers to that name.
    """
    folder = find_run(given, out)
    if given == folder.name or Path(given) in (folder, folder / "bench.json"):
        return folder
    later = [p for p in runs_of(folder.parent.parent, folder.parent.name) if p.name > folder.name]
    if later:
        typer.echo(
            f"run {folder.name}: in later ones ({later[-1].name}) nothing was measured", err=True
        )
    return folder


def find_measured(given: str, out: Path) -> Path:
    """The same, of a run that holds something to be compared.

    Raises:
        InputError: no trial of it was measured.
    """
    folder = find(given, out)
    if not something_measured(folder):
        raise InputError(
            "nothing was measured in this run, so it is no side of a comparison",
            where=str(folder),
            next_move=f"`kvbench report {folder}` tells why; give another run",
        )
    return folder
