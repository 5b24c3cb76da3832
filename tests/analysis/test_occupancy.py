from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.occupancy import occupancy, usable_tokens
from harness.record import GrantedKv, ProcessSample
from tests.analysis.build import gpu, request, scrape, trial, with_run
from tests.records import BLOCK, KV_BOUND
from tests.records import trial as played_trial


def test_one_block_of_the_pool_is_the_null_block():
    # a 5,120-token pool of 128-token blocks holds 4,992
    assert usable_tokens(GrantedKv(block_size=128, num_gpu_blocks=40)) == 4992
    assert usable_tokens(GrantedKv(block_size=128)) is None


def test_tokens_in_flight_are_the_prompt_from_the_first_chunk_and_each_token_as_it_comes():
    # sent 0, chunks at 1, 2, 3; prompt 100; done at 3
    one = request(sent=0.0, chunks=(1.0, 2.0, 3.0))
    samples = tuple(scrape(t) for t in (0.5, 1.5, 2.5, 3.5))
    points = occupancy(trial(one, engine_samples=samples)).points
    assert [point.tokens_in_flight for point in points] == [0.0, 101.0, 102.0, 0.0]


def test_a_prompt_without_a_first_chunk_counts_only_in_the_upper_curve():
    one = request(sent=0.0, chunks=(1.0, 2.0))
    points = occupancy(trial(one, engine_samples=(scrape(0.5), scrape(1.5)))).points
    assert [point.tokens_sent for point in points] == [100.0, 101.0]


def test_a_chunk_of_several_tokens_brings_as_many():
    # 6 tokens in 3 chunks
    one = request(sent=0.0, chunks=(1.0, 2.0, 3.0), output=6)
    assert occupancy(trial(one, engine_samples=(scrape(2.5),))).points[0].tokens_in_flight == 104.0


def test_a_request_that_failed_before_its_first_chunk_leaves_nothing_behind():
    lost = request(sent=0.0, chunks=(), finished_s=2.0, error="reset", prompt=None)
    points = occupancy(trial(lost, engine_samples=(scrape(1.0), scrape(3.0)))).points
    assert [point.tokens_sent for point in points] == [100.0, 0.0]
    assert [point.tokens_in_flight for point in points] == [0.0, 0.0]


def test_the_gap_between_blocks_and_tokens_is_fragmentation():
    # 10 usable blocks of 16: 0.7 of 160 = 112 slots hold 101 tokens (7 blocks), gap 11
    one = request(sent=0.0, chunks=(1.0, 2.0))
    seen = occupancy(
        trial(one, engine_samples=(scrape(1.5, kv_cache_usage=0.7),)), kv_bytes_per_token=1000
    )
    assert seen.settled == 1
    assert seen.fragmentation_mean_tokens == pytest.approx(11)
    assert seen.fragmentation_peak_tokens == pytest.approx(11)
    assert seen.fragmentation_mean_fraction == pytest.approx(11 / 112)
    assert seen.points[0].block_bytes == pytest.approx(112_000)
    assert seen.points[0].in_flight_bytes == pytest.approx(101_000)


def test_no_gap_is_claimed_while_a_prompt_may_be_half_stored():
    pair = (request(sent=0.0, chunks=(1.0, 3.0)), request(1, sent=1.2, chunks=(2.0, 3.0)))
    seen = occupancy(trial(*pair, engine_samples=(scrape(1.5, kv_cache_usage=0.9),)))
    assert seen.settled == 0
    assert seen.fragmentation_mean_tokens is None


def test_without_a_scrape_there_is_no_occupancy():
    assert occupancy(trial(request())) is None


def test_without_a_gauge_blocks_are_unknown_but_tokens_are_not():
    seen = occupancy(trial(request(chunks=(1.0, 2.0)), engine_samples=(scrape(1.5),)))
    assert (seen.points[0].block_tokens, seen.points[0].tokens_in_flight) == (None, 101.0)
    attached = with_run(
        trial(request(), engine_samples=(scrape(1.5, kv_cache_usage=0.5),)), server=None
    )
    assert occupancy(attached).points[0].block_tokens is None


def test_device_memory_that_stays_within_two_per_cent_is_flat():
    scrapes = (scrape(0.0), scrape(1.0))
    flat = (ProcessSample(0.0, 1000, 1), ProcessSample(1.0, 1010, 1))
    seen = occupancy(trial(request(), engine_samples=scrapes, process_samples=flat))
    assert (seen.device_flat, seen.device_span_bytes) == (True, 10)
    grows = (gpu(0.0, used_bytes=1000), gpu(1.0, used_bytes=1500))
    seen = occupancy(trial(request(), engine_samples=scrapes, gpu_samples=grows))
    assert (seen.device_flat, seen.device_span_bytes) == (False, 500)
    assert [point.device_bytes for point in seen.points] == [1000, 1500]


def test_memory_of_several_devices_is_added_where_all_were_read():
    samples = (gpu(0.0, 0, used_bytes=5), gpu(0.0, 1, used_bytes=7), gpu(1.0, 0, used_bytes=5))
    seen = occupancy(trial(request(), engine_samples=(scrape(0.0),), gpu_samples=samples))
    assert seen.points[0].device_bytes == 12


def test_a_played_load_wastes_at_most_one_block_per_request():
    seen = occupancy(played_trial("fp8", KV_BOUND), kv_bytes_per_token=11_520)
    assert seen.settled > 100
    assert 0 < seen.fragmentation_peak_tokens <= KV_BOUND["concurrency"] * BLOCK


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0, 50), st.lists(st.floats(0.01, 5), min_size=1, max_size=6)),
        max_size=8,
    )
)
def test_the_two_curves_agree_with_a_count_request_by_request(flights):
    requests = []
    for index, (sent, gaps) in enumerate(flights):
        times = tuple(sent + sum(gaps[: k + 1]) for k in range(len(gaps)))
        requests.append(replace(request(index, chunks=times), sent_s=sent))
    moments = [step * 0.73 for step in range(120)]
    seen = occupancy(trial(*requests, engine_samples=tuple(scrape(t) for t in moments)))
    for t, point in zip(moments, seen.points, strict=True):
        held = sum(
            100 + sum(c <= t for c in r.chunk_times_s)
            for r in requests
            if r.first_chunk_s <= t < r.finished_s
        )
        unseen = sum(100 for r in requests if r.sent_s <= t < r.first_chunk_s)
        assert point.tokens_in_flight == pytest.approx(held, abs=1e-3)
        assert point.tokens_sent == pytest.approx(held + unseen, abs=1e-3)
