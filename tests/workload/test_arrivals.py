from __future__ import annotations

import itertools
import random
import statistics

import pytest

from harness.workload import arrival_times


def seeded(seed: int | str) -> random.Random:
    return random.Random(seed)  # noqa: S311 - reproducible, not secret


def gaps(burstiness: float, count: int = 20_000) -> list[float]:
    times = arrival_times(count, 4.0, burstiness, seeded(7))
    return [b - a for a, b in itertools.pairwise(times)]


def test_the_first_request_is_due_at_once_and_the_others_follow_in_order():
    times = arrival_times(100, 4.0, 1.0, seeded(1))
    assert times[0] == 0.0
    assert list(times) == sorted(times)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_the_mean_gap_is_one_over_the_rate_whatever_the_burstiness(burstiness):
    # 4 requests/s: 0.25 s. The mean of n gaps has a relative spread of 1 / sqrt(k · n), at
    # most 1 / sqrt(0.25 · 20,000) = 1.4 %; 5 % is more than three of those.
    assert statistics.fmean(gaps(burstiness)) == pytest.approx(0.25, rel=0.05)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_the_spread_of_the_gaps_is_that_of_a_gamma_variable(burstiness):
    # Coefficient of variation 1 / sqrt(k): 2 in bursts, 1 for Poisson, 0.5 for an evener beat.
    sample = gaps(burstiness)
    spread = statistics.pstdev(sample) / statistics.fmean(sample)
    assert spread == pytest.approx(burstiness**-0.5, rel=0.06)


def test_the_same_seed_gives_the_same_times():
    first = arrival_times(50, 2.0, 1.0, seeded("a"))
    assert first == arrival_times(50, 2.0, 1.0, seeded("a"))
    assert first != arrival_times(50, 2.0, 1.0, seeded("b"))
