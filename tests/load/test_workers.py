from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from harness.load import LoadProgress
from tests.load.playing import Played, StopAt, planned, play_against, punctual


def test_workers_share_a_closed_loop_and_send_each_request_once(standin):
    url = standin.url(ttft_s=0.02)
    played = play_against(url, planned(30, warmups=2), concurrency=5, load_workers=2)
    assert sorted(record.index for record in played.records) == list(range(32))
    assert all(record.error is None for record in played.records)
    measured = [record for record in played.records if record.phase == "measured"]
    assert played.outcome.load_start_s <= min(r.planned_send_s for r in measured)
    assert max(r.finished_s for r in measured) <= played.outcome.load_end_s
    assert played.progress[-1].requests_total == 30


def test_workers_keep_an_open_loops_due_times_on_one_clock(standin):
    due = tuple(0.02 * i for i in range(12))

    def lateness() -> list[float]:
        played = play_against(standin.url(), planned(12, due=due), concurrency=None, load_workers=2)
        start_s = played.outcome.load_start_s
        for record, due_s in zip(played.by_index, due, strict=True):
            assert record.planned_send_s == pytest.approx(start_s + due_s)
        return [record.sent_s - record.planned_send_s for record in played.records]

    late = punctual(lateness, lambda late: max(late) < 0.5)
    assert 0 <= min(late) <= max(late) < 0.5


def test_more_workers_than_slots_leave_some_idle(standin):
    played = play_against(standin.url(), planned(3), concurrency=1, load_workers=2)
    assert sorted(record.index for record in played.records) == [0, 1, 2]


def test_a_stop_reaches_every_worker_and_their_records_arrive(standin):
    stop = StopAt(chunks=4)
    url = standin.url(fail="hang", fail_after=1)
    played = play_against(url, planned(20), concurrency=4, load_workers=2, **stop.hooks)
    assert played.outcome.stopped_early == "the server died"
    assert [record.error for record in played.records] == ["the server died"] * 4


def test_ctrl_c_brings_in_the_workers_records_and_leaves_no_process(standin):
    played = Played()

    def interrupt(progress: LoadProgress) -> None:
        if progress.requests_in_flight == 4:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        play_against(
            standin.url(fail="hang", fail_after=1),
            planned(20),
            concurrency=4,
            load_workers=2,
            into=played,
            on_progress=interrupt,
        )
    assert [record.error for record in played.records] == ["interrupted"] * 4
    assert multiprocessing.active_children() == []


def test_a_worker_that_is_killed_ends_the_load_with_a_reason(standin):
    killed = False

    def kill_one(progress: LoadProgress) -> None:
        nonlocal killed
        if not killed and progress.requests_in_flight == 4:
            killed = True
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    played = play_against(
        standin.url(fail="hang"),
        planned(20),
        concurrency=4,
        load_workers=2,
        on_progress=kill_one,
    )
    assert played.outcome.stopped_early == "a load worker ended unexpectedly"
    assert len(played.records) == 2
