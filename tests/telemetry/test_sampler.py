"""The sampler's handshake, its rate, its own cost, and what it does when a source fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from harness.clock import Clock
from harness.record import ProcessSample, Sample
from harness.telemetry.sampler import DEFAULT_INTERVAL_S, Sampler
from harness.telemetry.source import Problems, SourceProblem


@dataclass
class Steady:
    """A source whose every reading goes through ``act`` first."""

    act: Callable[[], None] = lambda: None
    problems: Problems = field(default_factory=Problems)
    reads: int = 0

    def read(self, now: float) -> list[Sample]:
        self.reads += 1
        self.act()
        return [ProcessSample(t_s=now, rss_bytes=self.reads, processes=1)]

    def close(self) -> None:
        raise AssertionError("a source belongs to whoever opened it, not to the sampler")


class Slow(Steady):
    """The same under another name."""


def test_every_source_was_read_before_the_sampler_is_entered() -> None:
    slow, quick = Slow(act=lambda: time.sleep(0.2)), Steady()
    seen: list[Sample] = []
    with Sampler([quick, slow], Clock(), seen.append, interval_s=60):
        assert (quick.reads, slow.reads) == (1, 1)
        assert len(seen) == 2


def test_leaving_takes_one_last_reading_of_every_source() -> None:
    clock = Clock()
    seen: list[Sample] = []
    with Sampler([Steady(), Steady()], clock, seen.append, interval_s=60):
        left_s = clock.now()
    assert len(seen) == 4
    assert all(sample.t_s >= left_s for sample in seen[2:])


def test_readings_keep_to_their_grid_and_do_not_drift() -> None:
    busy = Steady(act=lambda: time.sleep(0.01))  # a drifting loop would take 60 ms per reading
    seen: list[Sample] = []
    with Sampler([busy], Clock(), seen.append, interval_s=0.05):
        time.sleep(1.02)
    times = [sample.t_s for sample in seen[:-1]]
    # due at 0, 0.05 … 1.00; a machine under load may miss some but never gains any
    assert 15 <= len(times) <= 21
    offsets = [(t_s - times[0]) % 0.05 for t_s in times]
    near = [offset for offset in offsets if min(offset, 0.05 - offset) < 0.015]
    assert len(near) >= 0.8 * len(times)


def test_a_reading_that_came_too_late_is_left_out_and_not_made_up_for() -> None:
    naps = iter([0.0, 0.32])
    source = Steady(act=lambda: time.sleep(next(naps, 0.0)))
    seen: list[Sample] = []
    with Sampler([source], Clock(), seen.append, interval_s=0.1):
        time.sleep(0.55)
    gaps = [b.t_s - a.t_s for a, b in pairwise(seen[:-1])]
    # due at 0, 0.1, [0.2, 0.3, 0.4 fall into the nap], 0.5: no two readings in quick succession
    assert max(gaps) > 0.25
    assert min(gaps) > 0.05


def test_a_slow_source_does_not_hold_up_the_others() -> None:
    slow, quick = Slow(act=lambda: time.sleep(0.3)), Steady()
    with Sampler([slow, quick], Clock(), lambda _: None, interval_s=0.02):
        time.sleep(0.6)
    assert slow.reads <= 5
    assert quick.reads >= 15


def test_a_source_that_raises_costs_its_samples_and_nothing_else() -> None:
    def fail() -> None:
        raise RuntimeError("the cable is out")

    broken, sound = Slow(act=fail), Steady()
    seen: list[Sample] = []
    with Sampler([broken, sound], Clock(), seen.append, interval_s=60) as sampler:
        pass
    assert len(seen) == sound.reads == 2
    assert sampler.problems == (SourceProblem("Slow", 2, "RuntimeError: the cable is out"),)


def test_what_a_source_notes_by_itself_is_told() -> None:
    source = Steady()
    source.act = lambda: source.problems.note(f"failure {source.reads}")
    with Sampler([source], Clock(), lambda _: None, interval_s=60) as sampler:
        pass
    assert sampler.problems == (SourceProblem("Steady", 2, "failure 1"),)


def test_a_sink_that_refuses_samples_is_told_and_does_not_end_the_trial() -> None:
    def refuse(_: Sample) -> None:
        raise OSError("no space left")

    source = Steady()
    with Sampler([source], Clock(), refuse, interval_s=60) as sampler:
        pass
    assert source.reads == 2
    assert sampler.problems == (SourceProblem("sink", 2, "OSError: no space left"),)


def test_the_sink_is_called_by_one_thread_at_a_time() -> None:
    inside = threading.Lock()
    overlaps = []

    def sink(_: Sample) -> None:
        if not inside.acquire(blocking=False):
            overlaps.append(True)
            return
        time.sleep(0.002)
        inside.release()

    with Sampler([Steady() for _ in range(4)], Clock(), sink, interval_s=0.01):
        time.sleep(0.2)
    assert overlaps == []


def test_an_error_in_the_trial_comes_out_as_it_was_after_the_last_reading() -> None:
    source = Steady()
    with (
        pytest.raises(KeyError, match="the trial"),
        Sampler([source], Clock(), lambda _: None, interval_s=60),
    ):
        raise KeyError("the trial")
    assert source.reads == 2


def test_the_cpu_share_is_that_of_the_samplers_own_threads() -> None:
    def burn() -> None:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass

    clock = Clock()
    with Sampler([Steady(act=burn)], clock, lambda _: None, interval_s=60) as sampler:
        time.sleep(0.4)
        until = time.thread_time() + 0.1
        while time.thread_time() < until:  # ours, which must not be counted
            pass
    wall_s = clock.now()
    assert sampler.cpu_share is not None
    # two readings of 50 ms
    assert sampler.cpu_share * wall_s == pytest.approx(0.1, rel=0.2)


def test_before_it_is_entered_the_share_is_unknown() -> None:
    assert Sampler([], Clock(), lambda _: None).cpu_share is None


def test_the_default_rate_is_better_than_five_a_second() -> None:
    source = Steady()
    with Sampler([source], Clock(), lambda _: None) as sampler:
        time.sleep(1.0)
    assert sampler.interval_s == DEFAULT_INTERVAL_S < 0.2
    assert sampler.readings == {"Steady": source.reads}
    assert source.reads >= 6


def test_the_threads_are_gone_afterwards() -> None:
    before = threading.active_count()
    with Sampler([Steady(), Steady()], Clock(), lambda _: None):
        assert threading.active_count() == before + 2
    assert threading.active_count() == before
