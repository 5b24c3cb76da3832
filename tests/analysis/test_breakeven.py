from __future__ import annotations

import math

import pytest

from harness.analysis.breakeven import break_even, decode_points, fit_line
from tests.analysis.strategy_build import record, request

CONTEXTS = (1000.0, 2000.0, 3000.0, 4000.0)


def line(name: str, slope_s: float, intercept_s: float, noise_s: float = 0.0):
    """Two points per context, one above the line and one below."""
    points = [(x, intercept_s + slope_s * x + sign * noise_s) for x in CONTEXTS for sign in (1, -1)]
    made = fit_line(name, points)
    assert made is not None
    return made


def test_a_line_is_fitted_by_least_squares_with_its_intervals() -> None:
    made = line("fp16", 2e-6, 0.010, noise_s=0.001)
    assert made.slope_s == pytest.approx(2e-6)
    assert made.intercept_s == pytest.approx(0.010)
    # Residuals of ±1 ms at 8 points: variance 8e-6 / (8 − 2), deviation 1.1547 ms. Distances from
    # 2,500 are 1,500, 500, 500, 1,500, twice: spread 2 · 5e6 = 1e7. t(0.975, 6) = 2.4469.
    deviation = math.sqrt(8e-6 / 6)
    assert made.deviation_s == pytest.approx(deviation)
    assert made.slope_half_s == pytest.approx(2.4469 * deviation / math.sqrt(1e7), rel=1e-4)
    assert made.intercept_half_s == pytest.approx(
        2.4469 * deviation * math.sqrt(1 / 8 + 2500**2 / 1e7), rel=1e-4
    )


def test_too_few_points_or_contexts_make_no_line() -> None:
    assert fit_line("a", [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]) is None
    assert fit_line("a", [(1.0, 1.0), (1.0, 1.1), (2.0, 2.0), (2.0, 2.1)]) is None


def test_lines_that_cross_give_the_context_with_its_interval() -> None:
    # 12 ms + 1 µs/token against 10 ms + 2 µs/token: equal at 2 ms / 1 µs = 2,000 tokens.
    found = break_even(line("fp16", 2e-6, 0.010, 1e-4), line("fp8", 1e-6, 0.012, 1e-4))
    assert found.kind == "from"
    assert found.context_tokens == pytest.approx(2000, abs=2)
    # At 2,000: variance of each line = d² (1/8 + 500²/1e7), d = 1e-4 · sqrt(8/6); t(0.975, 12) =
    # 2.1788; half = t · sqrt(2 · variance) = 0.1378 ms, and the gap moves by 1 µs per token.
    half = 2.1788 * math.sqrt(2 * 1e-8 * 8 / 6 * (1 / 8 + 500**2 / 1e7))
    assert found.low_tokens == pytest.approx(2000 - half / 1e-6, rel=0.02)
    assert found.high_tokens == pytest.approx(2000 + half / 1e-6, rel=0.02)


def test_exact_lines_cross_at_a_point() -> None:
    found = break_even(line("fp16", 2e-6, 0.010), line("fp8", 1e-6, 0.012))
    assert found.low_tokens == pytest.approx(2000, abs=2)
    assert found.high_tokens == pytest.approx(2000, abs=2)


def test_a_variant_that_is_slower_throughout_never_breaks_even() -> None:
    found = break_even(line("fp16", 2e-6, 0.010, 1e-5), line("fp8", 3e-6, 0.011, 1e-5))
    assert found.kind == "never"
    assert found.context_tokens is None
    assert (found.shortest_tokens, found.longest_tokens) == (1000, 4000)


def test_a_variant_whose_gain_ends_with_the_context_never_breaks_even() -> None:
    # 1 ms faster at nothing, slower from 1,000 / 1e-6 … = 2,000 tokens on
    found = break_even(line("fp16", 2e-6, 0.012, 1e-5), line("fp8", 3e-6, 0.010, 1e-5))
    assert found.kind == "never"


def test_a_variant_that_is_faster_throughout_always_wins() -> None:
    found = break_even(line("fp16", 2e-6, 0.010, 1e-5), line("fp8", 1e-6, 0.009, 1e-5))
    assert found.kind == "always"


def test_lines_that_can_not_be_told_apart_are_unclear() -> None:
    found = break_even(line("fp16", 2e-6, 0.010, 5e-3), line("fp8", 1.9e-6, 0.0101, 5e-3))
    assert found.kind == "unclear"


def test_a_crossing_that_is_not_yet_shown_has_no_upper_end() -> None:
    # Crosses at 3,900 of 4,000: beyond it the gap stays below 0.1 µs · 100 = 0.01 ms.
    found = break_even(line("fp16", 2e-6, 0.010, 2e-4), line("fp8", 1.0e-6, 0.0139, 2e-4))
    assert found.kind == "from"
    assert found.high_tokens is None


def test_points_are_taken_in_the_middle_of_the_decode() -> None:
    made = record(requests=(request(0, 500, 11, itl=0.02), request(1, 700, 1)))
    # 11 tokens: 10 gaps of 20 ms; 500 + 11/2. One output token has no time between tokens.
    assert decode_points([made]) == ((505.5, pytest.approx(0.02)),)
