import time
from dataclasses import replace

import pytest

from harness.analysis.metrics import duration, measured, summarize
from harness.record import ClientSample, ProcessSample
from tests.analysis.build import gpu, request, scrape, trial, with_run
from tests.records import bench, failed, half_written, skipped


def three_requests():
    """Phase 0–10 s: 2 + 3 + 5 output tokens, 100 prompt tokens each."""
    return (
        request(0, sent=0.0, chunks=(1.0, 2.0)),
        request(1, sent=1.0, chunks=(3.0, 4.0, 5.0)),
        request(2, sent=2.0, chunks=(6.0, 7.0, 8.0, 9.0, 10.0)),
    )


def test_rates_divide_by_the_measured_duration():
    summary = summarize(trial(*three_requests()))
    assert summary.completed == 3
    assert summary.output_tokens == 10
    assert summary.prompt_tokens == 300
    assert summary.request_throughput == pytest.approx(0.3)
    assert summary.output_throughput == pytest.approx(1.0)
    assert summary.total_token_throughput == pytest.approx(31.0)


def test_latencies_are_those_of_the_definitions():
    summary = summarize(trial(*three_requests()))
    # TTFT 1, 2, 4; E2EL 2, 4, 8; TPOT 1, 1, 1; gaps all 1
    assert summary.ttft_s.p50 == 2.0
    assert summary.ttft_s.mean == pytest.approx(7 / 3)
    assert summary.e2el_s.p50 == 4.0
    assert summary.tpot_s.p50 == 1.0
    assert (summary.itl_s.count, summary.itl_s.mean) == (7, 1.0)


def test_warm_ups_are_kept_in_the_record_and_left_out_of_the_figures():
    warm = request(9, sent=-5.0, chunks=(-1.0, 0.0), phase="warmup")
    record = trial(warm, *three_requests())
    assert len(record.requests) == 4
    assert len(measured(record)) == 3
    assert summarize(record) == replace(summarize(trial(*three_requests())), planned=4)


def test_a_failed_request_counts_as_failed_and_gives_no_latency_or_token():
    broken = request(3, sent=3.0, chunks=(4.0,), error="connection reset")
    summary = summarize(trial(*three_requests(), broken))
    assert (summary.completed, summary.failed) == (3, 1)
    assert summary.output_tokens == 10
    assert summary.ttft_s.count == 3


def test_unknown_usage_makes_tokens_unknown_and_is_never_guessed_from_chunks():
    summary = summarize(trial(*three_requests(), request(3, output_tokens=None)))
    assert summary.output_tokens is None
    assert summary.output_throughput is None
    assert summary.total_token_throughput is None
    assert summary.prompt_tokens == 400
    assert summary.request_throughput == pytest.approx(0.4)


def test_without_requests_everything_is_unknown_and_nothing_zero():
    summary = summarize(trial())
    assert summary.request_throughput is None
    assert summary.output_tokens is None
    assert summary.ttft_s.mean is None
    assert (summary.steady, summary.steady_reason) == (None, "no request completed")


def test_a_phase_without_an_end_has_no_duration_and_no_rates():
    record = trial(*three_requests(), end=None)
    assert duration(record.run) is None
    summary = summarize(record)
    assert summary.output_throughput is None
    assert summary.ttft_s.p50 == 2.0


def test_goodput_counts_requests_that_meet_every_objective():
    record = with_run(trial(*three_requests()), slo={"ttft_s": 2.0, "e2el_s": 3.9})
    # TTFT ≤ 2: the first two; E2EL ≤ 3.9: the first alone → 1 in 10 s
    assert summarize(record).goodput == pytest.approx(0.1)


def test_goodput_without_an_objective_is_unknown():
    assert summarize(trial(*three_requests())).goodput is None


def test_a_request_of_one_token_cannot_miss_the_tpot_objective():
    record = with_run(trial(request(chunks=(1.0,))), slo={"tpot_s": 0.001})
    assert summarize(record).goodput == pytest.approx(0.1)


def test_a_tpot_objective_with_unknown_tokens_leaves_goodput_unknown():
    record = with_run(trial(request(output_tokens=None)), slo={"tpot_s": 1.0})
    assert summarize(record).goodput is None


def test_send_lag_is_actual_minus_planned_of_every_measured_request():
    record = trial(request(0, lag=0.1), request(1, lag=0.3), request(2, lag=0.2, error="x"))
    assert summarize(record).send_lag_s.p50 == pytest.approx(0.2)
    assert summarize(record).send_lag_s.count == 3


def test_gauges_are_read_over_the_measured_phase_alone():
    samples = (
        scrape(-1.0, kv_cache_usage=0.9, requests_running=9.0, requests_waiting=9.0),
        scrape(0.0, kv_cache_usage=0.2, requests_running=1.0, requests_waiting=0.0),
        scrape(10.0, kv_cache_usage=0.6, requests_running=3.0, requests_waiting=2.0),
        scrape(11.0, kv_cache_usage=1.0),
    )
    summary = summarize(trial(*three_requests(), engine_samples=samples))
    assert summary.kv_usage_peak == 0.6
    assert summary.kv_usage_mean == pytest.approx(0.4)
    assert (summary.requests_running_peak, summary.requests_waiting_peak) == (3.0, 2.0)


def test_preemptions_and_prefix_hits_are_counter_differences():
    samples = (
        scrape(
            -0.1,
            preemptions_total=5.0,
            prefix_cache_queries_total=100.0,
            prefix_cache_hits_total=40.0,
        ),
        scrape(
            10.1,
            preemptions_total=8.0,
            prefix_cache_queries_total=500.0,
            prefix_cache_hits_total=60.0,
        ),
    )
    summary = summarize(trial(*three_requests(), engine_samples=samples))
    assert summary.preemptions == 3.0
    assert summary.prefix_cache_hit_rate == pytest.approx(20 / 400)


def test_without_queries_there_is_no_hit_rate():
    samples = tuple(
        scrape(t, prefix_cache_queries_total=0.0, prefix_cache_hits_total=0.0) for t in (0.0, 10.0)
    )
    assert summarize(trial(*three_requests(), engine_samples=samples)).prefix_cache_hit_rate is None


def test_memory_peaks_are_of_the_phase_and_devices_are_added():
    record = trial(
        *three_requests(),
        process_samples=(ProcessSample(-1.0, 900, 3), ProcessSample(5.0, 700, 3)),
        gpu_samples=(
            gpu(5.0, 0, used_bytes=10),
            gpu(5.0, 1, used_bytes=20),
            gpu(6.0, 0, used_bytes=12),
        ),
    )
    summary = summarize(record)
    assert summary.rss_peak_bytes == 700
    assert summary.gpu_used_peak_bytes == 32


def test_memory_of_a_device_that_does_not_tell_is_unknown():
    record = trial(*three_requests(), gpu_samples=(gpu(5.0, 0, used_bytes=10), gpu(5.0, 1)))
    assert summarize(record).gpu_used_peak_bytes is None


def test_energy_comes_from_the_counter_where_there_is_one():
    # 50 J/s by the counter, while power says 100 W
    samples = tuple(gpu(float(t), energy_j=1000.0 + 50.0 * t, power_w=100.0) for t in range(-1, 12))
    summary = summarize(trial(*three_requests(), gpu_samples=samples))
    assert summary.energy_source == "counter"
    assert summary.energy_j == pytest.approx(500.0)
    # 500 J / 10 tokens
    assert summary.energy_per_output_token_j == pytest.approx(50.0)


def test_energy_is_integrated_power_where_a_counter_is_missing():
    samples = tuple(gpu(float(t), d, power_w=100.0) for t in range(-1, 12) for d in (0, 1))
    summary = summarize(trial(*three_requests(), gpu_samples=samples))
    assert summary.energy_source == "power"
    assert summary.energy_j == pytest.approx(2000.0)


def test_energy_that_was_not_sampled_to_the_end_is_unknown():
    samples = tuple(gpu(float(t), power_w=100.0) for t in range(5))
    summary = summarize(trial(*three_requests(), gpu_samples=samples))
    assert (summary.energy_j, summary.energy_source) == (None, None)


def test_the_clients_lag_is_its_largest_until_there_are_a_hundred_readings():
    few = tuple(ClientSample(float(t), 0.001 * t, 0.5) for t in range(11))
    summary = summarize(trial(*three_requests(), client_samples=few))
    assert summary.client_loop_lag_p99_s == pytest.approx(0.010)
    assert (summary.client_cpu_share, summary.client_cpu_share_peak) == (0.5, 0.5)


def test_failed_skipped_and_half_written_trials_are_summarised_without_a_crash():
    whole = bench(1)[1][0]
    died = summarize(failed(whole, "server died"))
    # 2 warm-ups and 3 measured requests were kept
    assert (died.completed, died.request_throughput) == (3, None)
    assert summarize(skipped(whole, "no such dtype")).completed == 0
    assert summarize(half_written(whole)).completed == 1


@pytest.mark.timeout(300)
def test_two_hundred_thousand_requests_are_summarised_in_seconds():
    chunks = tuple(1.0 + 0.01 * step for step in range(16))
    many = tuple(request(i, chunks=chunks) for i in range(1000)) * 200
    started = time.process_time()
    summary = summarize(trial(*many))
    assert summary.completed == 200_000
    assert summary.itl_s.p99 == pytest.approx(0.01)
    assert time.process_time() - started < 15.0
