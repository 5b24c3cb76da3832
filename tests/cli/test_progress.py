"""What a running bench shows, on a terminal and in a log."""

from __future__ import annotations

import io

from harness.cli.progress import BenchProgress
from harness.load import LoadProgress
from harness.record import GrantedKv
from harness.scenario import expand
from tests.scenario.test_expand import scenario

TRIALS = expand(scenario())


def at(t_s: float, done: int, chunks: int, failed: int = 0) -> LoadProgress:
    return LoadProgress(
        t_s=t_s,
        phase="measured",
        requests_total=10,
        requests_done=done,
        requests_failed=failed,
        requests_in_flight=2,
        chunks=chunks,
        output_tokens=0,
    )


def shown(expected_s: float | None = 100.0) -> tuple[BenchProgress, io.StringIO]:
    stream = io.StringIO()
    return BenchProgress(expected_s, stream), stream


def test_a_log_gets_plain_lines_with_all_that_matters() -> None:
    progress, stream = shown()
    with progress:
        progress.launching(TRIALS[:2], 1, 6)
        progress.starting("importing vLLM", 0.5)
        progress.starting("importing vLLM", 0.7)
        progress.starting("loading the weights", 9.0)
        progress.healthy(12.0, GrantedKv(kv_cache_tokens=5120, num_gpu_blocks=40))
        progress.trial(TRIALS[0], 1, 12)
        progress.load(at(1.0, 0, 0), 0.1)
        progress._last_line_s = float("-inf")
        progress.load(at(2.0, 5, 250, failed=1), 0.5)
    text = stream.getvalue()
    assert "launch 1/6: variant a, repeat 1" in text
    assert text.count("importing vLLM") == 1
    assert "KV pool 5,120 tokens in 40 blocks" in text
    assert "trial 1/12: measured 5/10 requests, 250.0 tok/s, KV in use 50 %, 1 failed" in text
    assert "about 1 min 40 s left" in text
    assert "\x1b" not in text


def test_load_lines_are_rare_in_a_log() -> None:
    progress, stream = shown()
    progress.trial(TRIALS[0], 1, 2)
    for step in range(50):
        progress.load(at(step / 10, step // 10, step), None)
    assert stream.getvalue().count("requests") == 1
    assert "KV in use —" in stream.getvalue()


def test_time_left_follows_what_was_done_once_a_trial_is_done() -> None:
    progress, stream = shown(expected_s=None)
    progress.trial(TRIALS[0], 1, 2)
    progress.trial(TRIALS[1], 2, 2)
    progress._began -= 100.0
    progress.load(at(1.0, 5, 10), None)
    # 1.5 of 2 trials in 100 s: a third of that is left.
    assert "about 33.3 s left" in stream.getvalue()


def test_trials_that_are_skipped_or_were_measured_before_take_none_of_the_time_left() -> None:
    stream = io.StringIO()
    progress = BenchProgress(None, stream, skips=6)
    # Of 12 trials 3 were measured before a resume, and one of the 6 is skipped by now.
    progress.trial(TRIALS[0], 4, 12)
    progress.unplayed(TRIALS[1], "skipped", "not here")
    progress.trial(TRIALS[2], 6, 12)
    progress._began -= 100.0
    progress.load(at(1.0, 5, 10), None)
    # 1.5 trials in 100 s; half a trial and one of the 6 behind it are left: 5 will be skipped.
    assert "about 1 min 40 s left" in stream.getvalue()


def test_hostile_names_are_shown_as_text() -> None:
    progress, stream = shown()
    progress.warn("[bold]not markup[/bold]")
    progress.unplayed(TRIALS[0], "failed", "first line\nsecond line")
    assert "[bold]not markup[/bold]" in stream.getvalue()
    assert "second line" not in stream.getvalue()
