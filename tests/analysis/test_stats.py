import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.stats import (
    centre,
    effect,
    effect_of_counts,
    least_squares,
    needs_more_repeats,
    net_range,
    noise_floor,
    percentiles,
    ratio_interval,
    t_cdf,
    t_quantile,
    unpaired_ratio_interval,
    wilson,
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


def test_the_unpaired_interval_is_welch_s_on_logarithms():
    # Logarithms 0, 1, 2 against 3, 4, 5: means 1 and 4, both variances 1, so the difference is
    # 3, its variance 1/3 + 1/3, the degrees of freedom (2/3)² / (2 · (1/3)² / 2) = 4, and
    # t(0.975, 4) = 2.7764: half = 2.7764 · √(2/3) = 2.2669.
    base = {repeat: math.exp(repeat) for repeat in range(3)}
    found = unpaired_ratio_interval(base, {r: math.exp(3 + r) for r in range(3)})
    assert found.ratio == pytest.approx(math.exp(3))
    assert math.log(found.low) == pytest.approx(3 - 2.2669, abs=1e-3)
    assert math.log(found.high) == pytest.approx(3 + 2.2669, abs=1e-3)
    assert found.replicates == 3
    assert "unpaired" in found.method


def test_unpaired_repeats_need_not_be_as_many_on_both_sides_nor_be_numbered_alike():
    # One side without spread: the other's 2 degrees of freedom are left, t(0.975, 2) = 4.3027.
    found = unpaired_ratio_interval(
        {7: 1.0, 8: 1.0, 9: 1.0, 10: 1.0}, {r: math.exp(r - 1) for r in range(3)}
    )
    assert found.ratio == pytest.approx(1.0)
    assert math.log(found.high) == pytest.approx(4.3027 / math.sqrt(3), abs=1e-3)


def test_the_unpaired_interval_does_not_cancel_what_both_sides_share():
    drifting = {0: 100.0, 1: 110.0, 2: 120.0}
    ten_per_cent_less = {repeat: value * 0.9 for repeat, value in drifting.items()}
    paired = ratio_interval(drifting, ten_per_cent_less)
    unpaired = unpaired_ratio_interval(drifting, ten_per_cent_less)
    assert paired.ratio == pytest.approx(unpaired.ratio) == pytest.approx(0.9)
    assert paired.relative_width < 1e-9
    assert unpaired.low < 0.75 < 1.0 < unpaired.high


def test_without_any_spread_the_unpaired_interval_has_no_width():
    found = unpaired_ratio_interval(dict.fromkeys(range(3), 4.0), dict.fromkeys(range(3), 5.0))
    assert found.low == found.high == pytest.approx(1.25)


def test_below_three_repeats_on_a_side_there_is_no_unpaired_interval():
    found = unpaired_ratio_interval({0: 2.0, 1: 2.0}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert (found.ratio, found.low, found.high) == (pytest.approx(0.5), None, None)
    assert "2 of the 3 repeats" in found.reason
    assert unpaired_ratio_interval({}, {0: 1.0}) is None
    assert unpaired_ratio_interval({0: 0.0}, {0: 1.0}) is None


@settings(max_examples=50)
@given(
    st.lists(POSITIVE, min_size=3, max_size=6),
    st.lists(POSITIVE, min_size=3, max_size=6),
)
def test_swapping_two_runs_inverts_the_unpaired_interval(base, mine):
    one = unpaired_ratio_interval(dict(enumerate(base)), dict(enumerate(mine)))
    other = unpaired_ratio_interval(dict(enumerate(mine)), dict(enumerate(base)))
    assert math.log(one.ratio) == pytest.approx(-math.log(other.ratio), abs=1e-9)
    assert math.log(one.low) == pytest.approx(-math.log(other.high), rel=1e-6, abs=1e-9)


def test_wilsons_interval_of_a_published_example() -> None:
    # 8 of 10, 95 %: 0.490 to 0.943 (Newcombe 1998 lists such intervals for small samples).
    low, high = wilson(8, 10)
    assert (low, high) == pytest.approx((0.490, 0.943), abs=0.001)
    assert wilson(10, 10)[1] == pytest.approx(1.0)


def test_many_ties_are_non_inferior_and_few_are_not_enough() -> None:
    # n = 50: half a pair in each cell; sqrt(1)/52 · 1.96 = 0.0377 < 0.10.
    assert net_range(0, 0, 50).low == pytest.approx(-0.0377, abs=1e-4)
    # n = 12: sqrt(1)/14 · 1.96 = 0.14 > 0.10.
    assert net_range(0, 0, 12).low == pytest.approx(-0.14, abs=1e-3)


def test_the_interval_of_a_net_loss_by_hand() -> None:
    # 10 wins, 30 losses of 100: n = 102, (10.5 − 30.5)/102 = −0.19608;
    # sqrt(41 − 400/102)/102 = sqrt(37.0784)/102 = 0.059698; · 1.96 = 0.11701.
    found = net_range(10, 30, 100)
    assert found.value == -0.2
    assert (found.low, found.high) == pytest.approx((-0.31309, -0.07907), abs=1e-4)


def test_a_percentile_lies_on_the_line_between_its_neighbours() -> None:
    # Five values: 90 % of the way along four gaps is 3.6, so 0.6 of the way from 40 to 90.
    assert percentiles([40.0, 10.0, 90.0, 20.0, 30.0], (0.5, 0.9)) == pytest.approx((30.0, 70.0))
    assert percentiles([7.0], (0.01, 0.99)) == (7.0, 7.0)


def test_the_line_of_least_squares_by_hand() -> None:
    # Means 2 and 4; slope ((-1)(-1) + 0(-1) + 1 · 2) / (1 + 0 + 1) = 1.5; 4 - 1.5 · 2 = 1.
    assert least_squares((1, 2, 3), (3, 3, 6)) == pytest.approx((1.5, 1.0))


def test_one_x_makes_no_line() -> None:
    with pytest.raises(ValueError, match="at least two different x"):
        least_squares((8, 8), (1, 2))
