from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.scaling import growth, log_slope, scaling, step_curve, total_curve
from tests.analysis import reference

NONE, GROWING = {"cache": "none"}, {"cache": "growing"}
STATIC = {"cache": "static", "max_cache_len": 4096}


def without_cache(seen: int, repeat: int) -> float:
    # 20 ms for the weights, 1 ms for every token whose keys and values are computed again.
    return (0.020 + 0.001 * seen) * (1.0 + 0.01 * repeat)


def with_cache(seen: int, repeat: int) -> float:
    return 0.020 * (1.0 + 0.01 * repeat)


def test_the_exponent_is_the_slope_on_two_logarithmic_axes() -> None:
    assert log_slope(((10, 3.0), (100, 3.0), (1000, 3.0))) == pytest.approx(0.0)
    assert log_slope(((1, 2.0), (2, 4.0), (4, 8.0))) == pytest.approx(1.0)
    # 3·n²: 3, 12, 48.
    assert log_slope(((1, 3.0), (2, 12.0), (4, 48.0))) == pytest.approx(2.0)
    # Off a line: x = 0, 1, 2 and y = 0, 1, 1 (in powers of two) have the slope (0·-1+1·1)/2 = 1/2.
    assert log_slope(((1, 1.0), (2, 2.0), (4, 2.0))) == pytest.approx(0.5)


def test_one_length_has_no_exponent() -> None:
    with pytest.raises(ValueError, match="two different"):
        log_slope(((8, 1.0), (8, 2.0)))


def test_a_step_is_placed_at_the_tokens_it_sees_and_gathered_in_octaves() -> None:
    # Prompt 6: the steps after the first see 7, 8, 9 and 10 tokens; octaves are 4–7 and 8–15.
    curve = step_curve([reference.request(6, 5, lambda seen: seen / 10)])
    assert curve == (
        (7, pytest.approx(0.7)),
        (9, pytest.approx(0.9)),
    )


def test_the_first_token_belongs_to_the_whole_and_not_to_the_steps() -> None:
    # Every step takes 1 s: after 8 of 64 tokens 8 s have gone since the send, after all 64, 64 s.
    curve = total_curve([reference.request(10, 64, lambda _: 1.0)])
    assert curve[0] == (17.0, pytest.approx(8.0))
    assert curve[-1] == (73.0, pytest.approx(64.0))
    assert len(curve) == 7


def test_a_short_generation_says_nothing_of_whole_sequences() -> None:
    assert total_curve([reference.request(1000, 8, lambda _: 1.0)]) == ()


def test_time_per_token_grows_without_a_cache_and_is_flat_with_one() -> None:
    found = scaling(
        [
            *reference.trials("no_cache", without_cache, NONE),
            *reference.trials("cache", with_cache, GROWING),
        ]
    )
    assert found is not None
    bare, kept = found.of_cache("none"), found.of_cache("growing")
    assert bare is not None
    assert kept is not None
    assert kept.per_token.fit is not None
    assert kept.per_token.fit.exponent == pytest.approx(0.0, abs=1e-9)
    assert bare.per_token.fit is not None
    # 20 ms are still in it, so it stays a little under 1.
    assert 0.8 < bare.per_token.fit.exponent < 1.0
    # What is left when the common part is taken off is the recomputation: n, and n² in all.
    assert found.recompute_per_token is not None
    assert found.recompute_per_token.fit is not None
    assert found.recompute_per_token.fit.exponent == pytest.approx(1.0)
    assert found.recompute_total is not None
    assert found.recompute_total.fit is not None
    assert found.recompute_total.fit.exponent == pytest.approx(2.0, abs=0.12)


def test_the_interval_is_that_of_the_launches_slopes() -> None:
    # Slopes 1.0, 1.1 and 1.2: mean 1.1, s = 0.1, t(0.975, 2) = 4.303, half 4.303·0.1/√3 = 0.2484.
    curves = {
        repeat: tuple((n, n ** (1.0 + 0.1 * repeat)) for n in (10.0, 20.0, 40.0, 80.0))
        for repeat in range(3)
    }
    fit = growth(curves).fit
    assert fit is not None
    assert fit.exponent == pytest.approx(1.1)
    assert fit.low == pytest.approx(1.1 - 0.2484, abs=1e-4)
    assert fit.high == pytest.approx(1.1 + 0.2484, abs=1e-4)
    assert (fit.points, fit.from_tokens, fit.to_tokens) == (4, 10.0, 80.0)


def test_two_launches_give_an_exponent_without_an_interval_and_say_why() -> None:
    curve = tuple((n, n) for n in (10.0, 20.0, 40.0))
    fit = growth({0: curve, 1: curve}).fit
    assert fit is not None
    assert (fit.low, fit.high) == (None, None)
    assert fit.reason == "no interval: 2 of the 3 launches that one needs"


def test_only_the_last_factor_of_eight_is_fitted() -> None:
    # Flat up to 100, linear from there on; 800 / 8 = 100.
    curve = ((12.0, 1.0), (50.0, 1.0), (100.0, 1.0), (200.0, 2.0), (400.0, 4.0), (800.0, 8.0))
    fit = growth({0: curve}).fit
    assert fit is not None
    assert fit.from_tokens == 100.0
    assert fit.exponent == pytest.approx(1.0)


@pytest.mark.parametrize(
    "curve",
    [
        (),
        ((10.0, 1.0), (80.0, 2.0)),  # two points
        ((10.0, 1.0), (12.0, 1.0), (14.0, 2.0)),  # too near to one another
        ((10.0, -1.0), (40.0, 0.0), (80.0, 1.0)),  # a difference that isn't above zero
    ],
)
def test_too_little_to_fit_gives_no_exponent(curve: tuple[tuple[float, float], ...]) -> None:
    assert growth({0: curve}).fit is None


def test_a_reservation_wastes_what_the_chapter_counts() -> None:
    # An eighth of 500, 2,000 and 100 tokens in 32K: 61, 249 and 11 are kept at the last step, in
    # 3 × 4,096: 1 − 321/12,288 = 97.4 %.
    loads = ((54, 8), (242, 8), (4, 8))
    found = scaling(
        [
            *reference.trials("static", with_cache, STATIC, 1, loads),
            *reference.trials("growing", with_cache, GROWING, 1, loads),
        ]
    )
    assert found is not None
    static, growing = found.of_cache("static"), found.of_cache("growing")
    assert static is not None
    assert growing is not None
    assert static.allocated_bytes == 3 * 4096 * 23_040
    assert static.waste == pytest.approx(1 - 321 / 12_288)
    assert growing.waste == 0.0
    assert found.kv_bytes_per_token == 23_040


def test_nothing_is_wasted_where_nothing_is_kept() -> None:
    found = scaling(reference.trials("no_cache", without_cache, NONE, 1))
    assert found is not None
    assert found.variants[0].waste is None
    assert found.recompute_total is None


def test_other_engines_and_trials_that_failed_are_left_out() -> None:
    good = reference.trials("cache", with_cache, GROWING, 1)
    failed = replace(good[0], run=replace(good[0].run, status="failed"))
    served = replace(
        good[0], run=replace(good[0].run, trial=replace(good[0].run.trial, engine="vllm"))
    )
    assert scaling([failed, served]) is None
    assert scaling([]) is None


def test_keys_and_values_are_counted_once_per_workload() -> None:
    found = scaling(reference.trials("cache", with_cache, GROWING, 2, ((1000, 500),)))
    assert found is not None
    (counted,) = found.counted
    assert (counted.without_cache, counted.with_cache) == (624_750, 1_499)
