from __future__ import annotations

import signal

import pytest

from tests.load.playing import Played, StopAt, planned, play_against


def test_a_reason_to_stop_ends_the_load_and_is_the_error_of_what_was_in_flight(standin):
    stop = StopAt(chunks=6)
    url = standin.url(fail="hang", fail_after=2)
    played = play_against(url, planned(50), concurrency=3, **stop.hooks)
    assert played.outcome.stopped_early == "the server died"
    assert [record.error for record in played.records] == ["the server died"] * 3
    assert all(len(record.chunk_times_s) == 2 for record in played.records)


def test_a_load_stopped_in_its_warm_up_has_no_measured_phase(standin):
    played = play_against(
        standin.url(fail="hang"), planned(5, warmups=2), should_stop=lambda: "died"
    )
    assert (played.outcome.load_start_s, played.outcome.load_end_s) == (None, None)
    assert {record.phase for record in played.records} <= {"warmup"}


def test_a_server_that_ends_in_mid_load_leaves_what_was_finished(own_standin):
    def died() -> str | None:
        code = own_standin.process.poll()
        return None if code is None else f"the server ended with status {code}"

    calm, deadly = own_standin.url(), own_standin.url(fail="exit", fail_after=3, itl_s=0.01)
    assert play_against(calm, planned(5)).outcome.stopped_early is None
    played = play_against(deadly, planned(1000), concurrency=4, should_stop=died)
    assert played.outcome.stopped_early == "the server ended with status 3"
    assert all(record.error is not None for record in played.records)
    # Four in flight, and at most a few more that found the port closed before the look-out did.
    assert 4 <= len(played.records) <= 16


def _ctrl_c(_sample: object) -> None:
    signal.raise_signal(signal.SIGINT)


def _a_handler_of_the_callers(_sample: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("interrupt", [_ctrl_c, _a_handler_of_the_callers])
def test_an_interrupt_records_what_is_in_flight_and_goes_on(standin, interrupt):
    played = Played()
    with pytest.raises(KeyboardInterrupt):
        play_against(
            standin.url(fail="hang", fail_after=1),
            planned(9),
            concurrency=3,
            into=played,
            on_sample=interrupt,
        )
    assert [record.error for record in played.records] == ["interrupted"] * 3


def test_a_record_that_can_not_be_kept_ends_the_load_with_that_error(standin):
    def full(_record: object) -> None:
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        play_against(standin.url(), planned(50), on_record=full)


@pytest.mark.parametrize("hook", ["on_sample", "on_progress", "should_stop"])
def test_a_hook_that_fails_ends_the_load_with_its_error(standin, hook):
    def broken(*_: object) -> None:
        raise ValueError("broken hook")

    with pytest.raises(ValueError, match="broken hook"):
        play_against(standin.url(ttft_s=0.5), planned(4), **{hook: broken})


def test_progress_counts_requests_chunks_and_tokens(standin):
    # Two streams of ten chunks, one every half second: seen when the first of them have come.
    played = Played()
    play_against(
        standin.url(ttft_s=0.1, itl_s=0.5),
        planned(2, output_tokens=10),
        concurrency=2,
        into=played,
        should_stop=lambda: "seen" if any(look.chunks for look in played.progress) else None,
    )
    counts = [progress.chunks for progress in played.progress]
    assert counts == sorted(counts)
    middle = next(progress for progress in played.progress if progress.chunks)
    assert 0 < middle.chunks < 20
    assert (middle.requests_in_flight, middle.requests_total, middle.phase) == (2, 2, "measured")
    assert (middle.requests_done, middle.requests_failed, middle.output_tokens) == (0, 0, 0)


def test_an_empty_plan_is_played_at_once(standin):
    played = play_against(standin.url(), ())
    assert played.records == []
    assert played.outcome.stopped_early is None
