"""The rule for what an opening may claim, on cells and counts that are planted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.claimable import is_claimable, ratios_with_intervals
from harness.analysis.compare import analyse
from harness.analysis.results import Analysis, Comparison, Effect, Validity
from harness.report.sentence import answer
from tests import records


def planted(
    p50: Effect, p90: Effect, count: int, verdict: Validity = "valid"
) -> tuple[Analysis, Comparison]:
    """A run whose TTFT has these effects, from ``count`` requests a repeat."""
    made = analyse(*records.bench(3, workloads=(records.EXERCISE,)))
    effects: dict[str, Effect] = {"ttft_s.p50": p50, "ttft_s.p90": p90}
    comparison = made.comparisons[0]
    rows = tuple(
        replace(
            row,
            cells=tuple(
                replace(
                    cell,
                    effect=effects[row.metric],
                    verdict=verdict if row.metric == "ttft_s.p90" else "valid",
                    improves=effects[row.metric] == "lower",
                )
                if not cell.is_baseline
                else replace(cell, verdict="valid")
                for cell in row.cells
            ),
        )
        if row.metric in effects
        else row
        for row in comparison.rows
    )
    trials = tuple(
        replace(
            trial,
            summary=replace(trial.summary, ttft_s=replace(trial.summary.ttft_s, count=count)),
        )
        for trial in made.trials
        if trial.summary is not None
    )
    comparison = replace(comparison, rows=rows)
    return replace(made, comparisons=(comparison,), trials=trials), comparison


@pytest.mark.parametrize(
    ("p50", "p90", "count", "verdict", "expected"),
    [
        # 16 requests: 1.6 lie beyond a p90. 100: ten do.
        ("no difference shown", "lower", 16, "valid", False),
        ("no difference shown", "lower", 99, "valid", False),
        ("no difference shown", "lower", 100, "valid", True),
        ("no difference shown", "lower", 100, "suspect", False),
        ("lower", "lower", 16, "valid", True),
        ("lower", "lower", 16, "suspect", True),
        ("higher", "lower", 16, "valid", False),
        ("lower", "lower", 16, "invalid", False),
        ("lower", "no difference shown", 500, "valid", False),
        ("no difference shown", "no interval", 500, "valid", False),
    ],
)
def test_a_tail_is_claimed_beside_its_median_or_from_enough_requests(
    p50: Effect, p90: Effect, count: int, verdict: Validity, expected: bool
) -> None:
    analysis, comparison = planted(p50, p90, count, verdict)
    assert is_claimable(analysis, comparison, "ttft_s.p90", "fp8") is expected


def test_the_opening_leaves_a_tail_of_few_requests_to_the_tables() -> None:
    alone, _ = planted("no difference shown", "lower", 16)
    text = " ".join(map(str, answer(alone).points))
    assert "TTFT p90" not in text
    assert "no difference in TTFT p50" in text
    many, _ = planted("no difference shown", "lower", 100)
    assert "TTFT p90" in " ".join(map(str, answer(many).points))


def test_what_is_not_a_tail_needs_its_own_interval_alone() -> None:
    analysis, comparison = planted("lower", "lower", 16)
    assert is_claimable(analysis, comparison, "ttft_s.p50", "fp8")
    assert not is_claimable(analysis, comparison, "ttft_s.p50", "fp16")
    assert not is_claimable(analysis, comparison, "no_such_metric", "fp8")


def test_the_ratios_that_could_miss_by_chance_are_counted() -> None:
    # Granted figures are exact, and below three repeats nothing has an interval.
    assert ratios_with_intervals(analyse(*records.bench(1))) == 0
    found = analyse(*records.bench(3))
    assert 10 < ratios_with_intervals(found) < 2 * len(found.comparisons[0].rows)
