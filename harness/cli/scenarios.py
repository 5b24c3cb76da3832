"""From what the user typed to a scenario: find the file, choose the profile, say so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from harness import machine
from harness.errors import InputError, NotFound, did_you_mean
from harness.scenario import PROFILES, Scenario, load_scenario

FOLDER = Path("scenarios")


def find_scenario(given: str) -> Path:
    """A path, or the name of a file in ``scenarios/`` (here, or in the checkout of kvbench).

    Raises:
        NotFound: no such file; lists those that exist.
    """
    path = Path(given)
    if path.suffix in (".yaml", ".yml") or "/" in given:
        if _is_there(path):
            return path
        raise NotFound("there is no such scenario file", where=given[:200], legal=known_scenarios())
    for folder in _folders():
        candidate = folder / f"{given}.yaml"
        if _is_there(candidate):
            return candidate
    known = known_scenarios()
    raise NotFound(
        f"there is no scenario {given[:200]!r}",
        where=str(FOLDER),
        legal=known,
        next_move=did_you_mean(given, known) or "give a name from the list, or a YAML file",
    )


def _is_there(path: Path) -> bool:
    try:
        # A pipe is a file, too: `kvbench plan <(generate)`.
        return path.is_file() or path.is_fifo()
    except (OSError, ValueError):
        return False


def _folders() -> tuple[Path, ...]:
    return FOLDER, Path(__file__).resolve().parents[2] / "scenarios"


def known_scenarios() -> list[str]:
    """The names of the scenario files at hand."""
    return sorted({path.stem for folder in _folders() for path in folder.glob("*.yaml")})


def choose_profile(asked: str | None) -> str:
    """The profile asked for, else the one that fits the machine; says which and why.

    Raises:
        InputError: a profile that does not exist.
    """
    if asked is not None:
        if asked not in PROFILES:
            raise InputError(
                f"there is no profile {asked!r}",
                where="--profile",
                legal=PROFILES,
                next_move=did_you_mean(asked, PROFILES),
            )
        typer.echo(f"profile: {asked} (asked for)", err=True)
        return asked
    profile, why = machine.detect_profile()
    typer.echo(f"profile: {profile} ({why})", err=True)
    if profile == "cpu":
        typer.echo(
            "  NO GPU: the CPU build of vLLM and a small model are measured. Ratios of memory and "
            "capacity carry over;\n  speeds are those of this CPU and say nothing about a GPU.",
            err=True,
        )
    return profile


def load(
    given: str, profile: str | None, overrides: Sequence[str], attach: str | None = None
) -> Scenario:
    """Find, resolve and check a scenario for the profile asked for (or detected)."""
    path = find_scenario(given)
    return load_scenario(path, choose_profile(profile), overrides=overrides, attach=attach)
