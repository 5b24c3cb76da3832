from __future__ import annotations

import itertools

import pytest

from tests.load.playing import planned, play_against, punctual


def most_at_once(records) -> int:
    """The largest number of requests that were between planned send and end at one moment."""
    steps = [(r.planned_send_s, 1) for r in records] + [(r.finished_s, -1) for r in records]
    # At the same moment an end counts before a beginning.
    return max(itertools.accumulate(step for _, step in sorted(steps)))


def test_a_closed_loop_keeps_its_slots_filled_and_never_more(standin):
    url = standin.url(ttft_s=0.05)
    records = play_against(url, planned(13, output_tokens=1), concurrency=4).records
    assert len(records) == 13
    assert most_at_once(records) == 4
    # 13 requests of 50 ms in 4 slots take ceil(13 / 4) = 4 rounds.
    span_s = max(r.finished_s for r in records) - min(r.planned_send_s for r in records)
    assert span_s >= 0.2


def test_a_closed_loop_plans_a_send_for_when_the_slot_became_free(standin):
    records = play_against(standin.url(), planned(3), concurrency=1).by_index
    for before, after in itertools.pairwise(records):
        assert after.planned_send_s == before.finished_s
        assert after.sent_s > after.planned_send_s


def test_an_open_loop_sends_when_due_however_many_are_unanswered(standin):
    due = (0.0, 0.05, 0.1, 0.15, 0.2)
    plan = planned(5, output_tokens=1, due=due)

    def lateness() -> list[float]:
        played = play_against(standin.url(ttft_s=0.4), plan, concurrency=None)
        start_s = played.outcome.load_start_s
        for record, due_s in zip(played.by_index, due, strict=True):
            assert record.planned_send_s == pytest.approx(start_s + due_s)
        assert most_at_once(played.records) == 5
        return [record.sent_s - record.planned_send_s for record in played.records]

    late = punctual(lateness, lambda late: max(late) < 0.1)
    assert 0 <= min(late) <= max(late) < 0.1


def test_warm_ups_are_played_first_recorded_and_left_out_of_the_measured_phase(standin):
    url = standin.url(ttft_s=0.02)
    played = play_against(url, planned(4, warmups=3), concurrency=2)
    warmups = [record for record in played.records if record.phase == "warmup"]
    measured = [record for record in played.records if record.phase == "measured"]
    assert (len(warmups), len(measured)) == (3, 4)
    assert max(r.finished_s for r in warmups) <= played.outcome.load_start_s
    assert played.outcome.load_start_s <= min(r.planned_send_s for r in measured)
    assert max(r.finished_s for r in measured) <= played.outcome.load_end_s
    assert played.outcome.stopped_early is None


def test_warm_ups_of_an_open_loop_are_played_one_at_a_time(standin):
    plan = planned(1, warmups=3, due=(0.0,))
    played = play_against(standin.url(ttft_s=0.02), plan, concurrency=None)
    assert most_at_once([r for r in played.records if r.phase == "warmup"]) == 1


def test_a_failing_request_does_not_end_the_load(standin):
    records = play_against(standin.url(fail="http"), planned(4), concurrency=4).records
    assert sorted(record.index for record in records) == [0, 1, 2, 3]
    assert all(record.error is not None for record in records)


def test_a_slot_pauses_after_a_failure_so_that_a_dead_server_is_noticed(standin):
    records = play_against(standin.url(fail="http"), planned(3), concurrency=1).by_index
    for before, after in itertools.pairwise(records):
        assert after.planned_send_s - before.finished_s >= 0.25
