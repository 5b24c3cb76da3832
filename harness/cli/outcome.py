"""What a bench comes to: its exit code, and the sentences that go with it."""

from __future__ import annotations

import typer

from harness.analysis.quality import GATE_CODE, gate_failures
from harness.analysis.results import Analysis
from harness.errors import NothingMeasured

FAILED = 1


def strict_exit(analysis: Analysis) -> None:
    """Exit 1 if a figure of a measured trial is invalid or a variant's text broken, naming each."""
    faults = {
        (verdict.code, verdict.reason): trial.trial_id
        for trial in analysis.trials
        for verdict in trial.verdicts
        if verdict.verdict == "invalid"
    }
    if analysis.quality is not None:
        for variant, reasons in gate_failures(analysis.quality).items():
            faults[GATE_CODE, "; ".join(reasons)] = variant
    if not faults:
        return
    for (code, reason), trial_id in faults.items():
        typer.echo(f"invalid ({code}): {reason} [{trial_id}]", err=True)
    raise typer.Exit(FAILED)


def check_something_measured(analysis: Analysis) -> None:
    """Refuse to pass for a result what is none.

    Raises:
        NothingMeasured: no trial was sealed.
    """
    _by_status(analysis)


def check_measured(analysis: Analysis) -> None:
    """Exit 1 after a bench in which a trial failed.

    Raises:
        NothingMeasured: no trial was sealed.
    """
    by_status = _by_status(analysis)
    if "failed" in by_status or "started" in by_status:
        count = len(by_status.get("failed", [])) + len(by_status.get("started", []))
        typer.echo(f"kvbench: {count} trial(s) failed; the report shows them", err=True)
        raise typer.Exit(FAILED)


def _by_status(analysis: Analysis) -> dict[str, list[str]]:
    by_status: dict[str, list[str]] = {}
    for trial in analysis.trials:
        by_status.setdefault(trial.status, []).append(f"{trial.trial_id}: {trial.reason or ''}")
    if "sealed" not in by_status:
        lines = [line for lines in by_status.values() for line in lines]
        raise NothingMeasured(
            "no trial could be measured",
            evidence="\n".join(dict.fromkeys(line.splitlines()[0] for line in lines[:10])),
            next_move="the reasons stand above and in the report",
        )
    return by_status
