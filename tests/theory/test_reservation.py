"""What whole-length reservations leave empty, worked by hand."""

from __future__ import annotations

import pytest

from harness.theory.reservation import stored_on_average, unused_share


def test_the_chapters_three_requests_leave_97_percent_of_their_reservations_empty() -> None:
    # 500 + 2,048 + 100 = 2,648 of 3 × 32,768 = 98,304 tokens: 2.69 % used
    assert unused_share((500, 2048, 100), 32768) == pytest.approx(1 - 2648 / 98304)
    assert round(unused_share((500, 2048, 100), 32768), 3) == 0.973


def test_a_request_in_flight_stores_its_prompt_and_half_its_output() -> None:
    # (10 tokens long: 100 + 5) and (30 long: 200 + 15), weighted by the time they stay:
    # (10 · 105 + 30 · 215) / 40 = 7,500 / 40
    assert stored_on_average([(100, 10), (200, 30)]) == pytest.approx(187.5)


def test_without_an_output_nothing_is_ever_in_flight() -> None:
    assert stored_on_average([]) == 0.0
    assert stored_on_average([(100, 0)]) == 0.0
