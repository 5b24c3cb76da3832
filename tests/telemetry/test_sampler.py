"""The sampler's handshake, its rate, its own cost, and what it does when a source fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

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


@dataclass
class Stepped:
    """Time that passes only where it is told to; at ``until_s`` it stands still.

    It is the clock that samples are stamped by as well. ``over`` is set once the sampler waits for
    a reading that is due after ``until_s``.
    """

    until_s: float = 0.0
    t_s: float = 0.0
    over: threading.Event = field(default_factory=threading.Event)

    def now(self) -> float:
        return self.t_s

    def pass_by(self, seconds: float) -> None:
        self.t_s += seconds

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        if self.t_s + seconds > self.until_s:
            self.over.set()
            return stop.wait(60)
        self.pass_by(max(0.0, seconds))
        return stop.is_set()


def sampled_times(source: Steady, interval_s: float, time: Stepped) -> list[float]:
    """When the source was read until the time was over, without the last reading on leaving."""
    seen: list[Sample] = []
    with Sampler([source], time, seen.append, interval_s, time.now, time.wait):
        assert time.over.wait(60)
    return [sample.t_s for sample in seen[:-1]]


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
    time = Stepped(until_s=1.02)
    # A loop that drifts would take 60 ms per reading.
    busy = Steady(act=lambda: time.pass_by(0.01))
    times = sampled_times(busy, 0.05, time)
    assert times == pytest.approx([0.05 * number for number in range(21)])


def test_a_reading_that_came_too_late_is_left_out_and_not_made_up_for() -> None:
    time = Stepped(until_s=0.65)
    naps = iter([0.0, 0.32])
    source = Steady(act=lambda: time.pass_by(next(naps, 0.0)))
    # Due at 0, 0.1, [0.2, 0.3, 0.4 fall into the nap], 0.5, 0.6: no two in quick succession.
    assert sampled_times(source, 0.1, time) == pytest.approx([0.0, 0.1, 0.5, 0.6])


def test_a_slow_source_does_not_hold_up_the_others() -> None:
    often = threading.Event()
    slow, quick = Slow(), Steady()
    held: list[bool] = []

    def hang() -> None:
        if slow.reads == 2:
            held.append(often.wait(60))

    def count() -> None:
        if quick.reads == 15:
            often.set()

    slow.act, quick.act = hang, count
    with Sampler([slow, quick], Clock(), lambda _: None, interval_s=0.02):
        assert often.wait(60)
    # Its second reading ended only when the other source had been read fifteen times.
    assert held == [True]


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

    clock = Stepped()
    with Sampler([Steady(act=burn)], clock, lambda _: None, interval_s=60) as sampler:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:  # ours, which must not be counted
            pass
        clock.pass_by(0.4)
    assert sampler.cpu_share is not None
    # Two readings of 50 ms in 0.4 s.
    assert sampler.cpu_share == pytest.approx(0.1 / 0.4, rel=0.2)


def test_before_it_is_entered_the_share_is_unknown() -> None:
    assert Sampler([], Clock(), lambda _: None).cpu_share is None


def test_the_default_rate_is_better_than_five_a_second() -> None:
    source, time = Steady(), Stepped(until_s=1.0)
    with Sampler([source], time, lambda _: None, monotonic=time.now, wait=time.wait) as sampler:
        assert time.over.wait(60)
    assert sampler.interval_s == DEFAULT_INTERVAL_S < 0.2
    assert sampler.readings == {"Steady": source.reads}
    # At 0, 0.15 … 0.90 s, and once more on leaving.
    assert source.reads == 8


def own_threads() -> int:
    return sum(thread.name.startswith("sampler-") for thread in threading.enumerate())


def test_the_threads_are_gone_afterwards() -> None:
    with Sampler([Steady(), Steady()], Clock(), lambda _: None):
        assert own_threads() == 2
    assert own_threads() == 0
