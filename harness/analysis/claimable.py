"""Which of many differences an opening or a title may claim.

Method: a report compares many figures, each at 95 %, so some single ones miss 1 by chance. What
speaks first is therefore kept to a simple rule. A figure needs an interval that leaves out 1 and no
invalid verdict. A tail (p90, p99) is claimed beside its median if that moved the same way; against
its median only if nothing is said against it and at least ``BEYOND`` requests of every repeat lie
beyond it: the p90 of a few requests sits on the edge of a wave of them, and jumps. Tables show
every figure all the same. Not covered: a correction of the intervals themselves.
"""

from __future__ import annotations

from harness.analysis.results import Analysis, Cell, Comparison

#: Requests beyond a tail in each repeat, from which up it may speak against its median.
BEYOND = 10
_TAILS = {"p90": 0.10, "p99": 0.01}


def is_claimable(analysis: Analysis, comparison: Comparison, metric: str, variant: str) -> bool:
    """Whether a difference of ``metric`` (dotted, as ``ttft_s.p90``) may stand in a headline."""
    sides = (comparison.cell(metric, comparison.baseline), comparison.cell(metric, variant))
    base, cell = sides
    if base is None or cell is None or not _is_shown(cell):
        return False
    if "invalid" in (base.verdict, cell.verdict):
        return False
    name, _, figure = metric.rpartition(".")
    if figure not in _TAILS:
        return True
    median = comparison.cell(f"{name}.p50", variant)
    if median is not None and median.effect == cell.effect and median.verdict != "invalid":
        return True
    sound = base.verdict == cell.verdict == "valid"
    return sound and _fewest(analysis, comparison, name, variant) * _TAILS[figure] >= BEYOND


def _is_shown(cell: Cell) -> bool:
    return cell.effect in ("higher", "lower")


def _fewest(analysis: Analysis, comparison: Comparison, name: str, variant: str) -> int:
    """The fewest values of a latency in any repeat of the two sides; 0 where nobody knows."""
    counts = [
        int(getattr(trial.summary, name).count)
        for trial in analysis.trials
        if trial.status == "sealed"
        and trial.summary is not None
        and trial.workload_label == comparison.workload_label
        and trial.variant in (variant, comparison.baseline)
    ]
    return min(counts, default=0)


def ratios_with_intervals(analysis: Analysis) -> int:
    """How many sampled ratios were held against 1, each at 95 %: one in twenty errs by chance."""
    return sum(
        cell.interval is not None
        and cell.interval.low is not None
        and cell.interval.high is not None
        and cell.interval.high > cell.interval.low
        for comparison in analysis.comparisons
        for row in comparison.rows
        for cell in row.cells
        if not cell.is_baseline
    )
