"""From what the user typed to a scenario: find the file, choose the profile, say so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from harness import machine
from harness.errors import InputError, NotFound, did_you_mean
from harness.execute.faults import model_faults
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


def check_device(scenario: Scenario) -> None:
    """Refuse to launch servers for a GPU that is not here, before the first one tries.

    Raises:
        InputError: the profile is cuda, and there is no device.
    """
    if scenario.profile != "cuda" or scenario.attach is not None:
        return
    found, why = machine.detect_profile()
    if found != "cuda":
        raise InputError(
            f"there is no GPU to launch servers on: {why}",
            where="--profile cuda",
            legal=["--profile cpu", "--url http://host:port/v1 of a server that runs elsewhere"],
            next_move="`kvbench plan --profile cuda` needs no GPU",
        )


def known_scenarios() -> list[str]:
    """The names of the scenario files at hand."""
    return sorted({path.stem for folder in _folders() for path in folder.glob("*.yaml")})


def choose_profile(asked: str | None) -> tuple[str, str]:
    """The profile asked for, else the one that fits the machine, and why it is that.

    Raises:
        InputError: a profile that does not exist.
    """
    if asked is None:
        return machine.detect_profile()
    if asked not in PROFILES:
        raise InputError(
            f"there is no profile {asked!r}",
            where="--profile",
            legal=PROFILES,
            next_move=did_you_mean(asked, PROFILES),
        )
    return asked, "asked for"


def _say(scenario: Scenario, why: str, *, asked: bool) -> None:
    """What is measured, before anything is; no address is printed that was not checked."""
    if scenario.attach is not None:
        typer.echo(
            f"attached: {scenario.attach} is measured as it runs; model, device and flags are its "
            f"own\n  the load is that of the profile {scenario.profile} ({why})",
            err=True,
        )
        return
    typer.echo(f"profile: {scenario.profile} ({why})", err=True)
    if scenario.profile == "cpu" and not asked:
        typer.echo(
            "  NO GPU: the CPU build of vLLM and a small model are measured. Ratios of memory and "
            "capacity carry over;\n  speeds are those of this CPU and say nothing about a GPU.",
            err=True,
        )


def load(
    given: str, profile: str | None, overrides: Sequence[str], attach: str | None = None
) -> Scenario:
    """Find, resolve and check a scenario for the profile asked for (or detected), and say so."""
    path = find_scenario(given)
    chosen, why = choose_profile(profile)
    resolved = load_scenario(path, chosen, overrides=overrides, attach=attach, further=model_faults)
    _say(resolved, why, asked=profile is not None)
    return resolved
