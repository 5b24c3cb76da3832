import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.latency import (
    distribution,
    e2el,
    ecdf,
    is_completed,
    known,
    pooled_itl,
    tpot,
    ttft,
)
from tests.analysis.build import request

FINITE = st.floats(min_value=0, max_value=1e6, allow_nan=False)


def test_ttft_and_e2el_count_from_the_actual_send():
    # planned at 0.8, sent at 1.0; chunks at 1.5, 2.0, 3.0
    one = request(sent=1.0, chunks=(1.5, 2.0, 3.0), lag=0.2)
    assert ttft(one) == 0.5
    assert e2el(one) == 2.0


def test_tpot_spreads_the_time_after_the_first_token_over_the_others():
    # (3.0 − 1.5) / (4 − 1) = 0.5, though 4 tokens came in 3 chunks
    assert tpot(request(sent=1.0, chunks=(1.5, 2.0, 3.0), output=4)) == 0.5


@pytest.mark.parametrize("tokens", [0, 1])
def test_below_two_output_tokens_there_is_no_tpot(tokens):
    assert tpot(request(chunks=(1.0,), output=tokens)) is None


def test_unknown_output_tokens_are_not_taken_from_the_chunks():
    assert tpot(request(chunks=(1.0, 2.0), output_tokens=None)) is None


def test_a_request_without_chunks_has_no_latencies():
    silent = request(chunks=())
    assert (ttft(silent), e2el(silent), tpot(silent)) == (None, None, None)


def test_a_request_is_completed_only_without_error_and_with_an_end():
    assert is_completed(request())
    assert not is_completed(request(error="timeout"))
    assert not is_completed(request(finished_s=None))


def test_gaps_are_pooled_over_requests_and_never_join_two_of_them():
    # 1→2 and 2→4 of the first, 10→10.5 of the second; not 4→10
    gaps = pooled_itl([request(chunks=(1.0, 2.0, 4.0)), request(chunks=(10.0, 10.5))])
    assert gaps.tolist() == [1.0, 2.0, 0.5]


def test_a_window_keeps_only_gaps_that_lie_wholly_inside():
    gaps = pooled_itl([request(chunks=(1.0, 2.0, 4.0, 7.0))], window=(2.0, 6.0))
    assert gaps.tolist() == [2.0]


def test_requests_of_one_chunk_have_no_gap():
    assert pooled_itl([request(chunks=(1.0,)), request(chunks=(2.0,))]).size == 0
    assert pooled_itl([]).size == 0


def test_no_values_make_a_distribution_of_unknowns_and_no_zeros():
    empty = distribution(known([None, None]))
    assert (empty.count, empty.mean, empty.p50, empty.p90, empty.p99) == (0, None, None, None, None)


def test_percentiles_lie_on_the_line_between_their_neighbours():
    # of 0, 1, 2, 3: p50 = 1.5, p90 at index 2.7 = 2.7, mean 1.5
    four = distribution(np.array([3.0, 1.0, 0.0, 2.0]))
    assert (four.count, four.mean, four.p50) == (4, 1.5, 1.5)
    assert four.p90 == pytest.approx(2.7)


def test_p99_needs_a_hundred_values():
    assert distribution(np.arange(99.0)).p99 is None
    # index 0.99 × 99 = 98.01
    assert distribution(np.arange(100.0)).p99 == pytest.approx(98.01)


@given(st.lists(FINITE, min_size=1, max_size=300))
def test_percentiles_agree_with_numpy_and_stay_in_order(values):
    found = distribution(np.array(values))
    assert found.p50 == pytest.approx(np.percentile(values, 50))
    assert found.p90 == pytest.approx(np.percentile(values, 90))
    assert min(values) <= found.p50 <= found.p90 <= max(values)


@given(st.lists(st.lists(FINITE, max_size=12).map(lambda times: tuple(sorted(times))), max_size=12))
def test_pooled_gaps_are_those_of_each_request_alone(chunk_lists):
    pooled = pooled_itl([request(chunks=chunks) for chunks in chunk_lists])
    alone = [b - a for chunks in chunk_lists for a, b in itertools.pairwise(chunks)]
    assert pooled.tolist() == pytest.approx(alone)


def test_a_cumulative_distribution_passes_each_value_at_its_share():
    # Sorted 0.1 0.2 0.3 0.4: a quarter of the values is at most 0.1, a half at most 0.2.
    values, shares = ecdf(np.array([0.4, 0.1, 0.3, 0.2]), 10)
    assert values.tolist() == [0.1, 0.1, 0.2, 0.3, 0.4]
    assert shares.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_of_more_values_than_steps_evenly_spaced_ones_are_taken_and_both_ends_are_true():
    # 1 … 10 in two steps: half of them are at most 5, all at most 10.
    values, shares = ecdf(np.arange(1.0, 11.0), 2)
    assert values.tolist() == [1.0, 5.0, 10.0]
    assert shares.tolist() == [0.0, 0.5, 1.0]
