from __future__ import annotations

import time

from tests.load.playing import planned, play_against


def test_the_client_samples_itself_five_times_a_second(standin):
    played = play_against(standin.url(ttft_s=1.3), planned(1, output_tokens=1))
    # 1.3 s hold six samples of 0.2 s; a busy machine may make each a little longer.
    assert 4 <= len(played.samples) <= 7
    assert all(sample.loop_lag_s >= 0 for sample in played.samples)
    assert all(0 <= sample.cpu_share < 1.5 for sample in played.samples)
    assert min(sample.cpu_share for sample in played.samples) < 0.2


def test_a_loop_that_is_held_up_shows_as_lag(standin):
    def slow(_record: object) -> None:
        time.sleep(0.15)

    url = standin.url(ttft_s=0.1)
    played = play_against(url, planned(8, output_tokens=1), on_record=slow)
    # The heartbeat is due every 10 ms, so of 150 ms it misses at least 140.
    assert max(sample.loop_lag_s for sample in played.samples) >= 0.14


def test_a_client_that_computes_shows_its_share_of_the_cpu(standin):
    def busy(_record: object) -> None:
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass

    played = play_against(standin.url(), planned(8, output_tokens=1), on_record=busy)
    # Near 1 on a machine of its own; a third is left where three others want the core.
    assert max(sample.cpu_share for sample in played.samples) > 0.3
