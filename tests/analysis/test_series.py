import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.series import Series, total


def test_unknown_readings_are_dropped_and_the_rest_put_in_order():
    readings = Series([(2.0, 5.0), (0.0, 1.0), (1.0, None)])
    assert readings.t_s.tolist() == [0.0, 2.0]
    assert readings.values.tolist() == [1.0, 5.0]


def test_of_no_readings_nothing_is_made_but_none():
    empty = Series([(0.0, None)])
    assert (empty.peak(), empty.mean(), empty.increase(0, 1), empty.integral(0, 1)) == (None,) * 4


def test_the_mean_weighs_readings_by_the_time_they_stand_for():
    # 0→1 s rises 0→2 (area 1), 1→4 s stays at 2 (area 6): 7 / 4
    assert Series([(0.0, 0.0), (1.0, 2.0), (4.0, 2.0)]).mean() == pytest.approx(1.75)


def test_one_reading_is_its_own_mean():
    assert Series([(3.0, 0.4)]).mean() == 0.4


def test_a_counter_grows_from_the_reading_before_the_start_to_that_after_the_end():
    counter = Series([(0.0, 3.0), (1.0, 4.0), (2.0, 6.0), (3.0, 9.0), (4.0, 10.0)])
    # start 1.5 → reading at 1.0 (4); end 2.5 → reading at 3.0 (9)
    assert counter.increase(1.5, 2.5) == 5.0


def test_a_counter_of_a_phase_without_an_end_runs_to_the_last_reading():
    assert Series([(0.0, 3.0), (1.0, 4.0), (9.0, 8.0)]).increase(0.5, float("inf")) == 5.0


def test_a_counter_that_fell_belongs_to_a_restarted_process_and_is_unknown():
    assert Series([(0.0, 3.0), (1.0, 9.0), (2.0, 1.0)]).increase(0.0, 2.0) is None


def test_one_reading_of_a_counter_shows_no_growth():
    assert Series([(0.0, 3.0)]).increase(0.0, 1.0) is None


def test_an_integral_is_cut_at_both_ends():
    # constant 100 W, sampled every second from 0 to 10; between 2.5 and 5 s: 250 J
    assert Series([(float(t), 100.0) for t in range(11)]).integral(2.5, 5.0) == 250.0


def test_an_integral_over_a_stretch_that_was_not_sampled_is_unknown():
    assert Series([(4.0, 100.0), (5.0, 100.0)]).integral(0.0, 5.0) is None


def test_a_sum_with_an_unknown_part_is_unknown():
    assert total([1.0, 2.0]) == 3.0
    assert total([1.0, None]) is None
    assert total([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50))
def test_the_mean_lies_between_the_smallest_and_the_largest_reading(values):
    mean = Series([(float(t), value) for t, value in enumerate(values)]).mean()
    assert min(values) - 1e-6 <= mean <= max(values) + 1e-6
