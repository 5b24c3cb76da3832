import pytest

from harness.analysis.steady import most_in_flight, steady
from tests.analysis.build import request


def closed_loop(waves: int) -> list:
    """Two slots; each request takes 2 s, its chunks 1 s and 2 s after its send."""
    return [
        request(
            2 * wave + slot,
            sent=2.0 * wave + slot,
            chunks=(2.0 * wave + slot + 1, 2.0 * wave + slot + 2),
        )
        for wave in range(waves)
        for slot in (0, 1)
    ]


def test_the_window_runs_from_the_first_completion_to_the_last_send():
    # sends 0,1,2,3,4,5,6,7; ends 2,3,…,9
    window, reason = steady(closed_loop(4))
    assert reason is None
    assert (window.start_s, window.end_s) == (2.0, 7.0)
    # ends at 3, 4, 5, 6, 7 lie in (2, 7]
    assert window.completed == 5
    assert window.request_throughput == 1.0


def test_tokens_of_the_window_are_those_whose_chunks_came_inside_it():
    # two chunks per second are due in a full loop: at 3, 4, 5, 6, 7 two each = 10 tokens in 5 s
    window, _ = steady(closed_loop(4))
    assert window.output_throughput == 2.0
    # first chunks at 3, 4, 5, 6, 7: five prompts of 100
    assert window.total_token_throughput == pytest.approx((10 + 500) / 5)


def test_latencies_of_the_window_are_of_requests_sent_and_ended_inside_it():
    window, _ = steady(closed_loop(4))
    # sent at 2, 3, 4, 5 and ended by 7
    assert window.e2el_s.count == 4
    assert window.e2el_s.p50 == 2.0
    # sent at 2 … 6 with a first chunk by 7
    assert window.ttft_s.count == 5


def test_a_chunk_of_several_tokens_counts_as_many():
    requests = [
        request(i, sent=r.sent_s, chunks=r.chunk_times_s, output=6)
        for i, r in enumerate(closed_loop(4))
    ]
    # 3 tokens per chunk
    assert steady(requests)[0].output_throughput == 6.0


def test_one_wave_has_no_steady_state_and_says_so():
    window, reason = steady(closed_loop(1))
    assert window is None
    assert "all ramp and drain" in reason


def test_a_window_of_less_than_one_turn_of_the_slots_is_refused_with_advice():
    # 8 slots sent at once, ended one after another; one more is sent at the first end
    requests = [request(i, sent=0.0, chunks=(1.0, 2.0 + i)) for i in range(8)]
    requests += [request(8, sent=2.5, chunks=(3.0, 9.0))]
    window, reason = steady(requests)
    assert window is None
    assert "0 requests completed" in reason
    assert "more prompts" in reason


def test_without_a_completed_request_there_is_nothing_to_window():
    assert steady([]) == (None, "no request completed")
    assert steady([request(error="refused")]) == (None, "no request completed")


def test_unknown_token_counts_leave_rates_of_tokens_unknown():
    requests = closed_loop(4)
    requests[3] = request(3, sent=3.0, chunks=(4.0, 5.0), output_tokens=None)
    window, _ = steady(requests)
    assert window.output_throughput is None
    assert window.total_token_throughput is None
    assert window.request_throughput == 1.0


def test_the_most_in_flight_counts_a_refilled_slot_once():
    # ends and sends coincide at 2, 3, …
    assert most_in_flight(closed_loop(3)) == 2
    assert most_in_flight([]) == 0
