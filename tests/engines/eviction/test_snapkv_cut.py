"""How much of a prompt goes, and who a row of a batch belongs to."""

from __future__ import annotations

import pytest

from harness.engines.eviction.snapkv.cut import Cut, FirstSteps
from harness.specs.eviction import SnapKvRule
from harness.theory.snapkv import snapkv_dropped


def test_a_prompt_of_2500_tokens_worked_by_hand() -> None:
    """78 whole blocks of 32 and 4 tokens; 16 blocks stay: 62 × 32 = 1,984 go, blocks 16 to 77."""
    cut = Cut(512, 32)
    assert cut.whole(2500) == 2496
    assert cut.dropped(2500) == 1984
    assert cut.freed_blocks(2500) == range(16, 78)


@pytest.mark.parametrize(("budget", "unit"), [(512, 32), (500, 128), (96, 16)])
def test_the_plugin_and_the_prediction_agree_on_the_count(budget: int, unit: int) -> None:
    cut = Cut(-(-budget // unit) * unit, unit)
    for tokens in range(3000):
        assert cut.dropped(tokens) == snapkv_dropped(SnapKvRule(budget), unit, tokens)
        assert len(cut.freed_blocks(tokens)) * unit == cut.dropped(tokens)


def test_a_row_is_known_by_its_first_block() -> None:
    steps = FirstSteps()
    assert steps.see(7, 0, 2500) == 0
    assert steps.see(9, 0, 40) == 0
    assert steps.see(7, 2500, 1) == 2500
    assert steps.see(9, 40, 1) == 40


def test_a_new_request_on_the_same_first_block_is_another_one() -> None:
    steps = FirstSteps()
    steps.see(7, 0, 2500)
    assert steps.see(7, 0, 100) == 0
    assert steps.see(7, 100, 1) == 100


def test_a_request_whose_beginning_was_not_seen_is_never_guessed_at() -> None:
    with pytest.raises(RuntimeError, match="whose first step it never saw"):
        FirstSteps().see(3, 500, 1)
