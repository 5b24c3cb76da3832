from __future__ import annotations

import gc
import itertools
import time
import weakref

from harness.load import watch
from harness.load.watch import quiet_collector
from harness.record import ClientSample
from tests.load.playing import Played, planned, play_against, punctual


def sampled_cpu_s(samples: list[ClientSample]) -> float:
    """The CPU time that the samples tell of, from the first one's end to the last one's."""
    pairs = itertools.pairwise(samples)
    return sum(after.cpu_share * (after.t_s - before.t_s) for before, after in pairs)


def test_the_client_samples_itself_five_times_a_second(standin):
    def idle() -> Played:
        cpu_s = time.process_time()
        played = play_against(standin.url(ttft_s=1.3), planned(1, output_tokens=1))
        times = [sample.t_s for sample in played.samples]
        assert all(after - before >= 0.2 for before, after in itertools.pairwise(times))
        assert all(sample.loop_lag_s >= 0 for sample in played.samples)
        # The process's own time, all of it and no more: next to nothing while it waits.
        assert 0 <= sampled_cpu_s(played.samples) <= time.process_time() - cpu_s
        return played

    # 1.3 s hold six samples of 0.2 s; a busy machine may make each a little longer.
    played = punctual(idle, lambda played: len(played.samples) >= 4)
    assert 4 <= len(played.samples) <= 7
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

    cpu_s = time.process_time()
    played = play_against(standin.url(), planned(20, output_tokens=1), on_record=busy)
    used_s = time.process_time() - cpu_s
    # 20 times 0.1 s, however long a busy machine takes over them. Left out is what was used before
    # the first sample and after the last: 0.2 s and two records each, and a round begun meanwhile.
    assert 20 * 0.1 / 2 <= sampled_cpu_s(played.samples) <= used_s


class Ring:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.self = self


def test_while_a_load_runs_the_collector_leaves_alone_what_was_there_before(monkeypatch):
    monkeypatch.setattr(watch, "gc", gc)
    gone, kept = weakref.ref(Ring()), Ring()
    with quiet_collector():
        # Garbage was freed first; the rest is out of the collector's sight.
        assert gone() is None
        assert gc.get_freeze_count() > 0
        assert all(found is not kept for found in gc.get_objects())
    assert gc.get_freeze_count() == 0
    assert any(found is kept for found in gc.get_objects())
