from __future__ import annotations

import pytest

from harness.analysis.waste import reservations, wastes
from harness.record import TrialRecord
from tests.analysis.strategy_build import analysed, record, request, scrapes

MIX = {"context_median": 100, "output_median": None, "sigma": 1.0}


def test_whole_lengths_hold_max_model_len_per_request_and_pages_their_blocks() -> None:
    # Two requests of 200 + up to 80 tokens, in flight from 1 s on, with 2 to 3 blocks each.
    requests = (request(0, 200, 80), request(1, 200, 80))
    flat = scrapes((1.0, 6 / 40, 2.0), (8.85, 6 / 40, 2.0))
    _, analysis = analysed(
        whole := record("whole", requests=requests, samples=flat, stamp="emulated", length_mix=MIX),
        paged := record("paged", requests=requests, samples=flat, baseline=False, length_mix=MIX),
    )
    first, second = wastes(analysis, [whole, paged])
    # Stored: from 2 · 201 at 1.0 s to 2 · 279 at 8.85 s, the mean of a straight line.
    assert first.stored_tokens == second.stored_tokens == pytest.approx((402 + 558) / 2)
    assert (first.reserves, first.held_tokens) == ("whole length", 2 * 2048)
    assert (second.reserves, second.held_tokens) == ("blocks", pytest.approx(6 * 128))
    assert first.of_held == pytest.approx(1 - 480 / 4096)
    assert first.of_pool == pytest.approx((4096 - 480) / (40 * 128))
    assert second.of_held == pytest.approx(1 - 480 / 768)
    # By plan: (200 + 40) of 2,048
    assert first.of_held_predicted == pytest.approx(1 - 240 / 2048)
    assert second.of_held_predicted is None


def test_loads_of_equal_lengths_have_no_such_analysis() -> None:
    made = record(requests=(request(0, 100, 10),), samples=scrapes((1.0, 0.1, 1.0)))
    _, analysis = analysed(made)
    assert wastes(analysis, [made]) == ()


def test_a_variants_reservations_are_the_means_of_its_trials() -> None:
    """Both trials store 480 tokens on average; held are 2 · 2,048 of them, or 1 · 2,048."""
    requests = (request(0, 200, 80), request(1, 200, 80))

    def whole(repeat: int, running: float) -> TrialRecord:
        flat = scrapes((1.0, 6 / 40, running), (8.85, 6 / 40, running))
        given = {"requests": requests, "samples": flat, "stamp": "emulated", "repeat": repeat}
        return record("whole", **given, length_mix=MIX)

    trials = [whole(0, 2.0), whole(1, 1.0)]
    (found,) = reservations(wastes(analysed(*trials)[1], trials))
    assert (found.variant, found.stamp, found.reserves) == ("whole", "emulated", "whole length")
    assert found.running_mean == pytest.approx(1.5)
    # (1 - 480/4,096 + 1 - 480/2,048) / 2; of the pool's 5,120: (3,616 + 1,568) / 2.
    assert found.of_held == pytest.approx((0.8828125 + 0.765625) / 2)
    assert found.of_pool == pytest.approx(2592 / 5120)
    assert found.stored_of_pool == pytest.approx(480 / 5120)
