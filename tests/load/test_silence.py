from __future__ import annotations

from harness.load.player import TIMED_OUT
from harness.load.silence import Silence
from harness.load.target import LoadProgress
from harness.record import Phase, RequestRecord


def heard(t_s: float, chunks: int, phase: Phase = "measured") -> LoadProgress:
    return LoadProgress(
        t_s=t_s,
        phase=phase,
        requests_total=9,
        requests_done=0,
        requests_failed=0,
        requests_in_flight=2,
        chunks=chunks,
        output_tokens=0,
    )


def ended(
    sent_s: float, error: str | None, last_s: float | None = None, phase: Phase = "measured"
) -> RequestRecord:
    return RequestRecord(
        index=0,
        phase=phase,
        prompt_tokens_planned=8,
        output_tokens_planned=8,
        planned_send_s=sent_s,
        sent_s=sent_s,
        first_chunk_s=last_s,
        last_chunk_s=last_s,
        finished_s=sent_s + 10,
        chunk_times_s=() if last_s is None else (last_s,),
        error=error,
    )


LATE = f"{TIMED_OUT} no whole answer after 10 s"


def test_a_request_that_waited_in_vain_while_nobody_was_answered_proves_silence() -> None:
    silence = Silence(10.0)
    silence.take(ended(0.0, LATE, phase="warmup"))
    assert "a warm-up request got no token within 10 s" in (silence.reason or "")


def test_a_request_that_waited_while_others_were_answered_proves_nothing() -> None:
    silence = Silence(10.0)
    silence.see(heard(1.0, 0))
    silence.see(heard(5.0, 3))
    silence.take(ended(0.0, LATE))
    assert silence.reason is None


def test_an_answer_that_ended_meanwhile_counts_though_no_progress_was_seen() -> None:
    silence = Silence(10.0)
    silence.take(ended(0.0, None, last_s=4.0))
    silence.take(ended(1.0, LATE))
    assert silence.reason is None


def test_a_server_that_falls_silent_is_noticed_by_the_next_whole_wait() -> None:
    silence = Silence(10.0)
    silence.see(heard(4.0, 3))
    silence.take(ended(1.0, LATE))
    assert silence.reason is None
    silence.take(ended(11.0, LATE))
    assert silence.reason is not None


def test_the_count_that_begins_anew_with_a_phase_is_no_answer() -> None:
    silence = Silence(10.0)
    silence.see(heard(1.0, 5, "warmup"))
    silence.see(heard(20.0, 0, "measured"))
    silence.take(ended(11.0, LATE))
    assert silence.reason is not None


def test_an_answer_cut_off_by_the_limit_and_other_errors_are_no_silence() -> None:
    silence = Silence(10.0)
    silence.take(ended(0.0, LATE, last_s=9.0))
    silence.take(ended(10.0, "HTTP 500"))
    assert silence.reason is None
