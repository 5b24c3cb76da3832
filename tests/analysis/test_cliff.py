from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.cliff import Cliff, cliffs
from harness.record import EngineSample, TrialRecord
from tests.analysis.strategy_build import analysed, record, request


def level(concurrency: int, running: float, preemptions: float = 0.0, **more: Any) -> TrialRecord:
    """500 + 12 tokens are 4 blocks of 128; 40 usable blocks hold 10 such requests."""
    samples = (
        EngineSample(0.0, requests_running=0.0, requests_waiting=0.0, preemptions_total=0.0),
        EngineSample(
            5.0, requests_running=running, requests_waiting=3.0, preemptions_total=preemptions
        ),
        EngineSample(
            10.0, requests_running=0.0, requests_waiting=0.0, preemptions_total=preemptions
        ),
    )
    return record(
        requests=(request(0, 500, 12),),
        samples=samples,
        context_tokens=500,
        output_tokens=12,
        concurrency=concurrency,
        **more,
    )


def swept(*levels: TrialRecord) -> Cliff:
    (found,) = cliffs(analysed(*levels)[1])
    return found


def test_the_cliff_is_where_theory_says() -> None:
    found = swept(level(8, 8), level(10, 10), level(11, 10), level(16, 10, 4))
    assert (found.blocks_per_request, found.usable_blocks, found.fits) == (4, 40, 10)
    assert (found.last_under, found.first_over) == (10, 11)
    assert found.within_one_step


def test_preemptions_alone_are_the_cliff_too() -> None:
    found = swept(level(8, 8), level(10, 10), level(11, 11, 2))
    assert found.first_over == 11
    assert found.within_one_step


@pytest.mark.parametrize(
    "levels",
    [
        (level(8, 8), level(10, 9), level(11, 10)),
        (level(8, 8), level(10, 10), level(11, 11), level(16, 10)),
    ],
)
def test_a_cliff_a_step_early_or_late_is_not_where_theory_says(
    levels: tuple[TrialRecord, ...],
) -> None:
    assert swept(*levels).within_one_step is False


def test_a_sweep_that_stays_below_the_capacity_tells_nothing() -> None:
    found = swept(level(2, 2), level(4, 4), level(8, 8))
    assert found.first_over is None
    assert found.within_one_step is None


def test_waiting_for_a_turn_in_a_step_is_no_sign() -> None:
    assert swept(level(2, 2), level(4, 4), level(8, 8)).levels[0].over is False


def test_two_levels_are_no_sweep() -> None:
    assert cliffs(analysed(level(8, 8), level(11, 10))[1]) == ()


def test_repeats_count_as_their_median() -> None:
    found = swept(
        *(level(8, 8, repeat=r) for r in range(3)),
        *(level(10, 10, repeat=r) for r in range(3)),
        level(11, 11, repeat=0),
        level(11, 10, repeat=1),
        level(11, 10, repeat=2),
    )
    assert found.first_over == 11
