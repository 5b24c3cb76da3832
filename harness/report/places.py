"""Each variant's place among all of a run, hence its colour and marker in every chart.

Not covered: how a place looks (``style.look``).
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.analysis.results import Analysis


def places(analysis: Analysis) -> Mapping[str, int]:
    """Variant → place; the baseline comes first, one that no trial and no pool has is missing."""
    names = dict.fromkeys(
        [
            analysis.baseline,
            *(kv.variant for kv in analysis.kv),
            *(trial.variant for trial in analysis.trials),
        ]
    )
    return {name: place for place, name in enumerate(names)}
