"""An analysis as plain JSON values: what ``kvbench bench --json`` prints.

Method: names as in DESIGN section 4, SI units, unknown is null; a number that isn't finite becomes
null too, since JSON has no other word for it. Occupancy goes in as its figures; its points lie in
the stored samples. Not covered: the names of ``vllm bench serve`` (the report's export).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from harness.analysis.results import Analysis, Occupancy, Summary, TrialAnalysis


def to_json(
    analysis: Analysis, *, run: str | None = None, report: str | None = None
) -> dict[str, Any]:
    """Return the analysis as JSON values; ``run`` and ``report`` are the paths to print."""
    return {
        "run": analysis.run_id if run is None else run,
        "scenario": analysis.scenario,
        "profile": analysis.profile,
        "baseline": analysis.baseline,
        "rows": [_row(trial, analysis.occupancy.get(trial.trial_id)) for trial in analysis.trials],
        "comparisons": plain(analysis.comparisons),
        "kv": plain(analysis.kv),
        "kv_budget": {
            "mode": analysis.kv_budget_mode,
            "bytes": analysis.kv_budget_bytes,
            "tokens": analysis.kv_budget_tokens,
        },
        "ledgers": plain(analysis.ledgers),
        "headline": plain(analysis.headline),
        "cautions": plain(analysis.cautions),
        "methods": plain(analysis.methods),
        "skipped": plain(analysis.skipped),
        "quality": plain(analysis.quality),
        "report": report,
    }


def _row(trial: TrialAnalysis, occupancy: Occupancy | None) -> dict[str, Any]:
    return {
        "trial": trial.trial_id,
        "variant": trial.variant,
        "is_baseline": trial.is_baseline,
        "repeat": trial.repeat,
        "launch": trial.launch,
        "workload": plain(trial.workload),
        "workload_label": trial.workload_label,
        "status": trial.status,
        "reason": trial.reason,
        "stamp": trial.stamp,
        "metrics": _metrics(trial.summary, occupancy),
        "engine": {
            "kv_cache_tokens": trial.granted.kv_cache_tokens,
            "num_gpu_blocks": trial.granted.num_blocks,
            "block_size": trial.granted.block_size,
            "max_concurrency": plain(trial.granted.max_concurrency),
            "kv_cache_memory_bytes": trial.granted.kv_cache_memory_bytes,
        },
        "theory": _theory(trial),
        "theory_reason": trial.theory_reason,
        "ceilings": plain(trial.ceilings),
        "ceilings_reason": trial.ceilings_reason,
        "verdicts": plain(trial.verdicts),
    }


def _metrics(summary: Summary | None, occupancy: Occupancy | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    figures: dict[str, Any] = plain(summary)
    figures["occupancy"] = None
    if occupancy is not None:
        kept = (field.name for field in fields(occupancy) if field.name != "points")
        figures["occupancy"] = {name: plain(getattr(occupancy, name)) for name in kept}
    return figures


def _theory(trial: TrialAnalysis) -> dict[str, Any] | None:
    if trial.theory is None:
        return None
    described: dict[str, Any] = plain(trial.theory)
    return {**described.pop("kv"), **described}


def plain(value: Any) -> Any:
    """Dataclasses and mappings → dicts, sequences → lists, numbers that aren't finite → None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
