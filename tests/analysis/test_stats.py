import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.stats import (
    centre,
    effect,
    effect_of_counts,
    needs_more_repeats,
    noise_floor,
    ratio_interval,
    t_cdf,
    t_quantile,
)

POSITIVE = st.floats(min_value=1e-3, max_value=1e6)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    # NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2, column 0.975
    [
        (1, 12.706),
        (2, 4.303),
        (3, 3.182),
        (4, 2.776),
        (5, 2.571),
        (10, 2.228),
        (29, 2.045),
        (100, 1.984),
    ],
)
def test_the_t_quantile_is_the_published_one(degrees, quantile):
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, abs=5e-4)


def test_the_t_quantile_has_its_closed_forms():
    # one degree: tan(π(p − ½)); two: (2p − 1)·√(2 / (4p(1 − p)))
    assert t_quantile(0.9, 1) == pytest.approx(math.tan(0.4 * math.pi))
    assert t_quantile(0.9, 2) == pytest.approx(0.8 * math.sqrt(2 / (4 * 0.9 * 0.1)))


@given(st.floats(0.5, 0.9999), st.integers(1, 60))
def test_quantile_and_distribution_are_inverse(probability, degrees):
    assert t_cdf(t_quantile(probability, degrees), degrees) == pytest.approx(probability)


@pytest.mark.parametrize(("probability", "degrees"), [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_a_quantile_that_does_not_exist_is_an_error(probability, degrees):
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(probability, degrees)


def test_the_interval_of_three_pairs_by_hand():
    # log ratios ln 1.1, ln 1.2, ln 1.3 = 0.09531, 0.18232, 0.26236: mean 0.18000, sd 0.08355;
    # half width 4.3027 × 0.08355 / √3 = 0.20755 → exp(0.18000 ± 0.20755)
    found = ratio_interval({0: 10.0, 1: 10.0, 2: 10.0}, {0: 11.0, 1: 12.0, 2: 13.0})
    assert found.ratio == pytest.approx(1.19722, abs=1e-4)
    assert found.low == pytest.approx(0.97283, abs=1e-4)
    assert found.high == pytest.approx(1.47336, abs=1e-4)
    assert (found.replicates, found.confidence) == (3, 0.95)


def test_below_three_pairs_there_is_a_ratio_and_no_interval():
    found = ratio_interval({0: 10.0, 1: 10.0}, {0: 20.0, 1: 20.0})
    assert found.ratio == pytest.approx(2.0)
    assert (found.low, found.high, found.relative_width) == (None, None, None)
    assert found.reason == "no interval: 2 of the 3 repeats that one needs"


def test_only_repeats_that_both_have_are_paired():
    found = ratio_interval({0: 10.0, 1: 1.0}, {0: 20.0, 2: 99.0})
    assert (found.ratio, found.replicates) == (pytest.approx(2.0), 1)
    assert ratio_interval({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_a_value_without_a_logarithm_has_no_ratio(bad):
    assert ratio_interval({0: 1.0, 1: bad, 2: 1.0}, {0: 1.0, 1: 1.0, 2: 1.0}) is None


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=3, max_size=8))
def test_the_interval_holds_the_ratio_and_turns_over_with_the_sides(pairs):
    base = {i: b for i, (b, _) in enumerate(pairs)}
    other = {i: v for i, (_, v) in enumerate(pairs)}
    there, back = ratio_interval(base, other), ratio_interval(other, base)
    assert there.low <= there.ratio * (1 + 1e-9)
    assert there.ratio <= there.high * (1 + 1e-9)
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.low == pytest.approx(1 / there.high)


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=3, max_size=8), POSITIVE)
def test_the_unit_of_measurement_does_not_change_a_ratio(pairs, scale):
    base = {i: b for i, (b, _) in enumerate(pairs)}
    other = {i: v for i, (_, v) in enumerate(pairs)}
    found = ratio_interval(base, other)
    scaled = ratio_interval(
        {i: b * scale for i, b in base.items()}, {i: v * scale for i, v in other.items()}
    )
    assert scaled.ratio == pytest.approx(found.ratio)
    assert math.log(scaled.high / scaled.low) == pytest.approx(
        math.log(found.high / found.low), abs=1e-6
    )


def test_the_interval_covers_a_true_ratio_as_often_as_it_says():
    # Three pairs of noise, drawn from a symmetric grid of quantiles of the normal distribution:
    # of all 21³ draws about 95 % of the intervals must hold 1.
    from statistics import NormalDist

    grid = [NormalDist().inv_cdf((k + 0.5) / 21) for k in range(21)]
    held = total = 0
    for draw in product(grid, repeat=3):
        found = ratio_interval(
            dict.fromkeys(range(3), 1.0), {i: math.exp(0.05 * z) for i, z in enumerate(draw)}
        )
        total += 1
        held += found.low <= 1.0 <= found.high
    assert 0.93 < held / total < 0.97


def test_the_noise_floor_is_the_largest_ratio_between_two_launches():
    floor = noise_floor([100.0, 104.0, 102.0])
    assert (floor.ratio, floor.launches) == (pytest.approx(1.04), 3)
    assert noise_floor([100.0]) is None
    assert noise_floor([0.0, 0.0]) is None


def interval(*ratios):
    return ratio_interval(dict.fromkeys(range(len(ratios)), 1.0), dict(enumerate(ratios)))


def test_an_effect_needs_an_interval_without_one_and_a_ratio_outside_the_noise():
    floor = noise_floor([100.0, 103.0])
    assert effect(interval(1.30, 1.31, 1.32), floor) == "higher"
    assert effect(interval(0.70, 0.71, 0.72), floor) == "lower"
    assert effect(interval(0.9, 1.0, 1.1), floor) == "no difference shown"


def test_an_effect_inside_the_noise_floor_is_no_difference_shown():
    # 2 % with an interval of ±0.1 %, but the baseline differs from itself by 3 %
    small = interval(1.0200, 1.0204, 1.0202)
    assert small.low > 1.0
    assert effect(small, noise_floor([100.0, 103.0])) == "no difference shown"
    assert effect(small, noise_floor([100.0, 101.0])) == "higher"
    mirrored = interval(1 / 1.0200, 1 / 1.0204, 1 / 1.0202)
    assert effect(mirrored, noise_floor([100.0, 103.0])) == "no difference shown"


def test_without_an_interval_no_effect_is_claimed():
    assert effect(interval(2.0, 2.0), None) == "no interval"
    assert effect(None, None) == "unknown"


def test_counts_with_zeros_differ_when_their_ranges_are_apart():
    many, none = {0: 3.0, 1: 5.0, 2: 4.0}, {0: 0.0, 1: 0.0, 2: 0.0}
    assert effect_of_counts(many, none) == "lower"
    assert effect_of_counts(none, many) == "higher"
    assert effect_of_counts(none, none) == "no difference shown"
    assert (
        effect_of_counts({0: 0.0, 1: 5.0, 2: 1.0}, {0: 3.0, 1: 0.0, 2: 2.0})
        == "no difference shown"
    )
    assert effect_of_counts({0: 4.0}, {0: 0.0}) == "no interval"
    assert effect_of_counts({}, none) == "unknown"


def test_repeats_go_on_until_the_interval_is_narrow_enough():
    assert needs_more_repeats(None, 0.05)
    assert needs_more_repeats(interval(2.0, 2.0), 0.05)
    tight = interval(1.30, 1.301, 1.299)
    assert not needs_more_repeats(tight, 0.05)
    assert needs_more_repeats(tight, tight.relative_width / 2)


@settings(max_examples=50)
@given(st.lists(POSITIVE, min_size=1, max_size=9))
def test_the_centre_is_the_median(values):
    assert min(values) <= centre(values) <= max(values)


def test_the_centre_of_nothing_is_unknown():
    assert centre([]) is None
    assert centre([3.0, 1.0, 2.0]) == 2.0
