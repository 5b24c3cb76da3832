"""Repeat until the interval is narrow enough: the rule of ``--until-width``.

After each block of launches (every variant once more) the stored run is analysed as a report
would, and the widest interval of an output-throughput ratio decides. Fewer than three repeats
give no interval, so at least three are run. A cap keeps a noisy machine from going on for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.analysis.compare import analyse
from harness.analysis.headline import widest_interval
from harness.analysis.stats import needs_more_repeats
from harness.store import read_bench
from harness.units import Fraction


@dataclass(frozen=True, slots=True)
class Until:
    """Go on until every interval is at most ``relative_width`` wide, or ``max_repeats`` are run.

    The width is high/low − 1 of the ratio's 95 % interval: 0.1 is 10 %.
    """

    relative_width: Fraction
    max_repeats: int


def wants_more(run_folder: Path, until: Until, repeats: int) -> bool:
    """Whether another block of launches is called for after ``repeats`` of them."""
    if repeats >= until.max_repeats:
        return False
    analysis = analyse(*read_bench(run_folder))
    if not any(trial.status == "sealed" for trial in analysis.trials):
        return False
    return needs_more_repeats(widest_interval(analysis.comparisons), until.relative_width)
