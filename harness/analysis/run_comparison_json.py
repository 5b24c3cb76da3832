"""A comparison of runs as plain JSON values: what ``kvbench compare --json`` prints.

Method: one object with a schema version of its own, documented in ``docs/compare.md``; SI units,
shares and changes as fractions, unknown (and what is not finite) is null. A key may be added
within a version; whatever an old reader would misread raises it. Not covered: wording.
"""

from __future__ import annotations

from typing import Any

from harness.analysis.gate import Check, GateResult
from harness.analysis.results import Cell, Row
from harness.analysis.rows import EXACT
from harness.analysis.run_comparison import METHODS, RunComparison, StoredRun, VariantComparison
from harness.analysis.run_json import plain
from harness.analysis.scoreboard import device_name

SCHEMA = "kvbench.compare"
SCHEMA_VERSION = 1


def run_comparison_json(
    run_comparison: RunComparison, gate: GateResult | None = None
) -> dict[str, Any]:
    """Return the comparison, and the gate's answer if one was asked, as JSON values."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "baseline": run_comparison.runs[0].label,
        "runs": [_run(run) for run in run_comparison.runs],
        "forced_unlike": list(run_comparison.forced),
        "differences": [
            {
                "key": one.key,
                "unlike": one.refused,
                "values": _by_run(run_comparison, [plain(value) for value in one.values]),
            }
            for one in run_comparison.differences
        ],
        "pairs": [_pair(load) for load in run_comparison.loads],
        "cautions": plain(run_comparison.cautions),
        "gate": None if gate is None else _gate(gate),
        "methods": plain(METHODS),
    }


def _by_run(run_comparison: RunComparison, values: list[Any]) -> dict[str, Any]:
    return {run.label: value for run, value in zip(run_comparison.runs, values, strict=True)}


def _run(run: StoredRun) -> dict[str, Any]:
    environment, headline = run.bench.environment, run.analysis.headline
    servers = [record.run.server for record in run.records if record.run.server is not None]
    versions = dict.fromkeys(server.engine_version for server in servers)
    return {
        "label": run.label,
        "run_id": run.bench.run_id,
        "scenario": run.bench.scenario_name,
        "status": run.bench.status,
        "started_at": environment.started_at,
        "profile": environment.profile,
        "device": device_name(environment),
        "model": run.bench.scenario.get("model"),
        "engine_versions": [version for version in versions if version is not None],
        "kvbench_version": environment.kvbench_version,
        "git_revision": environment.git_revision,
        "git_dirty": environment.git_dirty,
        "trials": {
            "sealed": headline.trials_sealed,
            "failed": headline.trials_failed,
            "skipped": headline.trials_skipped,
            "unfinished": headline.trials_unfinished,
        },
    }


def _pair(load: VariantComparison) -> dict[str, Any]:
    rows = load.comparison.rows if load.comparison is not None else ()
    return {
        "variant": load.variant,
        "workload": plain(load.workload),
        "workload_label": load.workload_label,
        "compared": load.comparison is not None,
        "runs": {
            side.run: {
                "planned": side.planned,
                "trials": dict(side.counts),
                "reasons": list(side.reasons),
                "estimate": load.estimates.get(side.run),
            }
            for side in load.sides
        },
        "rows": [_row(row) for row in rows if any(c.value is not None for c in row.cells)],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "metric": row.metric,
        "label": row.label,
        "unit": row.unit,
        "better": row.better,
        "exact": row.metric in EXACT,
        "noise_floor": plain(row.noise.ratio) if row.noise is not None else None,
        "cells": {cell.variant: _cell(cell) for cell in row.cells},
    }


def _cell(cell: Cell) -> dict[str, Any]:
    interval = cell.interval
    return {
        "value": plain(cell.value),
        "replicates": [[repeat, plain(value)] for repeat, value in cell.replicates],
        "stamp": cell.stamp,
        "ratio": plain(cell.ratio),
        "low": plain(interval.low) if interval is not None else None,
        "high": plain(interval.high) if interval is not None else None,
        "method": interval.method if interval is not None else None,
        "effect": cell.effect,
        "improves": cell.improves,
        "verdict": cell.verdict,
        "verdicts": plain(cell.verdicts),
    }


def _gate(gate: GateResult) -> dict[str, Any]:
    return {
        "verdict": gate.verdict,
        "exit_code": gate.exit_code,
        "checks": [_check(check) for check in gate.checks],
    }


def _check(check: Check) -> dict[str, Any]:
    return {
        "rule": check.rule.text,
        "metric": check.rule.metric,
        "limit": check.rule.limit,
        "fails_when": "below" if check.rule.below else "above",
        "run": check.run,
        "variant": check.variant,
        "workload_label": check.workload_label,
        "verdict": check.verdict,
        "reason": check.reason,
        "exact": check.exact,
        "change": plain(check.change),
        "replicates": list(check.replicates),
        "doubts": list(check.doubts),
    }
