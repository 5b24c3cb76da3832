from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.breakeven import (
    BreakEven,
    break_even,
    decode_points,
    fit_line,
    fit_lines,
    lines,
)
from harness.scenario import load_scenario
from tests.analysis.strategy_build import record, request

ROOT = Path(__file__).resolve().parents[2]
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


def test_lines_that_cross_below_the_shortest_context_do_not_cross_where_it_was_measured() -> None:
    # Equal at 0.6 ms / 1 µs = 600 tokens, and shown to be faster only further on than 1,000.
    found = break_even(line("fp16", 2e-6, 0.010, 5e-4), line("fp8", 1e-6, 0.0106, 5e-4))
    assert found.kind == "from"
    assert found.context_tokens is None
    assert found.shortest_tokens == 1000
    assert found.low_tokens is None
    assert found.high_tokens is not None
    assert found.high_tokens > 1000


def test_a_gap_that_closes_unseen_is_neither_never_nor_a_crossing() -> None:
    # 4.2 ms slower at nothing, 0.2 ms slower at 4,000 tokens: less than the noise there.
    found = break_even(line("fp16", 2e-6, 0.010, 5e-4), line("fp8", 1e-6, 0.0142, 5e-4))
    assert found.kind == "not shown"
    assert found.context_tokens is None


def shifted(slope_s: float, intercept_s: float, *shifts_s: float):
    """A launch per shift: exact lines that lie so far above and below the variant's."""
    return {
        launch: [(x, intercept_s + shift + slope_s * x) for x in CONTEXTS]
        for launch, shift in enumerate(shifts_s)
    }


def test_repeated_launches_are_the_unit_of_chance() -> None:
    base, other = fit_lines(
        {
            "fp16": shifted(2e-6, 0.010, -1e-4, 0.0, 1e-4),
            "fp8": shifted(1e-6, 0.012, -1e-4, 0.0, 1e-4),
        }
    )
    assert (base.unit, base.launches, base.points, base.degrees) == ("launch", 3, 12, 4)
    # Within each variant 1e-8 + 0 + 1e-8, pooled: 4e-8 / 4 degrees; the mean of 3 launches has a
    # third of it. t(0.975, 4) = 2.7764.
    assert base.intercept_half_s == pytest.approx(2.7764 * math.sqrt(1e-8 / 3), rel=1e-4)
    assert base.slope_half_s == pytest.approx(0.0, abs=1e-12)
    found = break_even(base, other)
    # The gap moves by 1 µs per token; half = 2.7764 · sqrt(2 · 1e-8 / 3) = 226.7 µs.
    half = 2.7764 * math.sqrt(2e-8 / 3) / 1e-6
    assert found.context_tokens == pytest.approx(2000, abs=2)
    assert found.low_tokens == pytest.approx(2000 - half, abs=3)
    assert found.high_tokens == pytest.approx(2000 + half, abs=3)


def test_launches_that_differ_widen_the_interval_though_requests_within_them_agree() -> None:
    alike = fit_lines(
        {"fp16": shifted(2e-6, 0.010, 0.0, 0.0, 0.0), "fp8": shifted(1e-6, 0.012, 0.0, 0.0, 0.0)}
    )
    apart = fit_lines(
        {
            "fp16": shifted(2e-6, 0.010, -2e-3, 0.0, 2e-3),
            "fp8": shifted(1e-6, 0.012, -2e-3, 0.0, 2e-3),
        }
    )
    assert break_even(*alike).kind == "from"
    # ±2 ms between launches hides a gap that is 1 ms at 1,000 tokens and 2 ms at 4,000.
    assert break_even(*apart).kind == "unclear"


def test_without_repeats_the_line_goes_through_the_requests_and_says_so() -> None:
    noisy = [(x, 0.01 + sign * 1e-4) for x in CONTEXTS for sign in (1, -1)]
    made = fit_lines({"fp16": {0: noisy}, "fp8": {0: noisy}})
    assert [(each.unit, each.launches) for each in made] == [("request", 1)] * 2
    # One repeat of one variant alone leaves a single degree of freedom, whose t is 12.7.
    made = fit_lines({"fp16": {0: noisy, 1: noisy}, "fp8": {0: noisy}})
    assert [(each.unit, each.launches) for each in made] == [("request", 2), ("request", 1)]


def test_a_variant_that_lost_launches_borrows_the_spread_of_the_others() -> None:
    base, other = fit_lines(
        {
            "fp16": shifted(2e-6, 0.010, -1e-4, 0.0, 1e-4),
            "fp8": shifted(1e-6, 0.012, 0.0),
        }
    )
    # 2e-8 / 2 degrees; one launch has all of it, the mean of three a third.
    assert base.var_b == pytest.approx(1e-8 / 3)
    assert other.var_b == pytest.approx(1e-8)
    assert base.degrees == other.degrees == 2


def test_lines_take_their_launches_from_the_records() -> None:
    records = [
        record(
            variant,
            baseline=variant == "fp16",
            repeat=repeat,
            context_tokens=prompt,
            requests=(request(0, prompt, 11, itl=base + repeat * 1e-4 + slope * prompt),),
        )
        for variant, slope, base in (("fp16", 2e-6, 0.010), ("fp8", 1e-6, 0.012))
        for repeat in range(2)
        for prompt in (1000, 2000, 3000, 4000)
    ]
    base, other = lines(records)
    assert (base.variant, base.unit, base.launches, base.points) == ("fp16", "launch", 2, 8)
    assert other.slope_s == pytest.approx(1e-6)


def simulated(generator: np.random.Generator) -> BreakEven:
    """One run of the shipped CPU profile on a machine whose lines and noise are known.

    The lines are those that were measured on two cores (docs/strategies.md): they cross at
    2.7 ms / 1.4 µs = 1,929 tokens. The noise is that of a busy machine: launches of one variant
    differ by 0.4 ms, requests of one launch by 0.7 ms.
    """
    scenario = load_scenario(ROOT / "scenarios" / "kv_dtypes.yaml", "cpu")
    contexts = [load.context_tokens for load in scenario.workloads for _ in range(load.num_prompts)]
    planted = {"auto": (3.4e-6, 0.0165), "fp8_e4m3": (2.0e-6, 0.0192), "fp8_e5m2": (2e-6, 0.0192)}
    made = fit_lines(
        {
            name: {
                launch: [
                    (float(x), b + shift + a * x + generator.normal(0.0, 0.7e-3)) for x in contexts
                ]
                for launch in range(scenario.repeats)
                for shift in [generator.normal(0.0, 0.4e-3)]
            }
            for name, (a, b) in planted.items()
        }
    )
    assert made[0].unit == "launch"
    return break_even(made[0], made[1])


def test_the_shipped_sweep_finds_a_break_even_at_1900_tokens_and_its_interval_holds_it() -> None:
    generator = np.random.default_rng(11)
    found = [simulated(generator) for _ in range(200)]
    bounded = [each for each in found if each.kind == "from" and each.high_tokens is not None]
    assert len(bounded) >= 190
    holds = [(x.low_tokens or 0.0) <= 2.7e-3 / 1.4e-6 <= (x.high_tokens or 0.0) for x in bounded]
    # 95 % of 200 is 190; three standard errors are 9.
    assert sum(holds) / len(bounded) >= 0.95 - 0.046
    widths = [(each.high_tokens or 0.0) - (each.low_tokens or 0.0) for each in bounded]
    assert float(np.median(widths)) < 1900
