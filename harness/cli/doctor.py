"""``kvbench doctor``: what this machine can run, and what stands in the way."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from harness.engines.doctor import Finding, examine, possible


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check this machine: Python, engine, GPU, CPU, memory, disk, models, other engines.

    Exit code 1 if a bench is impossible here, else 0.
    """
    findings = examine()
    able = possible(findings)
    if as_json:
        told = {"possible": able, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(told, indent=1, ensure_ascii=False))
    else:
        for finding in findings:
            typer.echo(render(finding))
        typer.echo("A bench can run here." if able else "A bench can't run here: see FAIL above.")
    raise typer.Exit(0 if able else 1)


def render(finding: Finding) -> str:
    """A finding as one line, and below it what it means and the next move."""
    mark = finding.status if finding.status == "ok" else finding.status.upper()
    lines = [f"{mark:<5} {finding.check:<15} {finding.found}", f"{'':21} {finding.means}"]
    if finding.next_move:
        lines.append(f"{'':21} next: {finding.next_move}")
    return "\n".join(lines)
