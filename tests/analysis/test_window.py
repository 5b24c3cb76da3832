from __future__ import annotations

from dataclasses import replace

from harness.analysis.window import window_results
from harness.record import TrialRecord
from tests.analysis.strategy_build import analysed, record, request, scrapes

MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}


def served(variant: str, window: int | None, *readings: tuple[float, float, float]) -> TrialRecord:
    """Requests of 1,500 + 36 tokens; steps of 256 tokens; 80 usable blocks."""
    overrides = {**MISTRAL, "sliding_window": window}
    made = record(
        variant,
        requests=(request(0, 1500, 36),),
        samples=scrapes(*readings),
        blocks=81,
        baseline=window is None,
        flags={"hf_overrides": overrides, "max_num_batched_tokens": 256},
        context_tokens=1500,
        output_tokens=36,
    )
    config = {**(made.run.trial.model_config or {}), **overrides}
    return replace(made, run=replace(made.run, trial=replace(made.run.trial, model_config=config)))


def test_a_windowed_request_stays_below_its_cap() -> None:
    # ceil((512 − 1 + 256) / 128) + 1 = 6 + 1 blocks; without a window ceil(1536 / 128) = 12.
    full = served(
        "full", None, (1.0, 12 / 80, 1), (2.0, 24 / 80, 2), (3.0, 24 / 80, 2), (4.0, 24 / 80, 2)
    )
    window = served("w", 512, (1.0, 6 / 80, 1), (2.0, 6 / 80, 1), (3.0, 5 / 80, 1))
    first, second = window_results(analysed(full, window)[1].trials, [full, window])
    assert (first.window_tokens, first.predicted_blocks, first.measured_blocks) == (None, 12, 12.0)
    assert (second.window_tokens, second.predicted_blocks, second.measured_blocks) == (512, 7, 6.0)
    assert second.holds
    assert second.block_bytes == 128 * 23_040


def test_a_sample_at_which_a_request_was_just_admitted_does_not_count() -> None:
    full = served("full", None, (1.0, 12 / 80, 1), (2.0, 12 / 80, 1), (3.0, 12 / 80, 1))
    window = served(
        "w",
        512,
        (1.0, 6 / 80, 1),
        (2.0, 6 / 80, 1),
        (3.0, 6 / 80, 1),
        (4.0, 14 / 80, 1),
        (5.0, 14 / 80, 2),
    )
    _, second = window_results(analysed(full, window)[1].trials, [full, window])
    assert second.measured_blocks == 6.0


def test_a_cap_that_is_overrun_is_told() -> None:
    full = served("full", None, (1.0, 12 / 80, 1), (2.0, 12 / 80, 1), (3.0, 12 / 80, 1))
    window = served("w", 512, (1.0, 9 / 80, 1), (2.0, 9 / 80, 1), (3.0, 9 / 80, 1))
    assert window_results(analysed(full, window)[1].trials, [full, window])[1].holds is False


def test_a_run_without_windows_has_no_such_analysis() -> None:
    full = served("full", None, (1.0, 12 / 80, 1))
    assert window_results(analysed(full)[1].trials, [full]) == ()
