"""Blocks and tokens after a cut by score, by hand and held against a reading block by block."""

from __future__ import annotations

import pytest

from harness.specs.eviction import SnapKvRule
from harness.specs.model import model_spec, read_config
from harness.theory.capacity import predict_capacity
from harness.theory.settings import settings_from_flags
from harness.theory.snapkv import (
    snapkv_blocks_held,
    snapkv_blocks_kept,
    snapkv_dropped,
    snapkv_most_blocks_held,
    snapkv_tokens_read,
)

RULE = SnapKvRule(512)
GIB = 1 << 30


def test_a_prompt_of_2500_tokens_shrinks_to_516() -> None:
    """78 whole blocks of 32 and 4 tokens; 16 blocks stay: 512 + 4, and 62 × 32 = 1,984 go.

    While the 40th token behind it is computed: 2,540 − 1,984 = 556 tokens in 18 blocks; the
    prompt alone takes 79. Block 128: 19 whole blocks and 68 tokens, 4 stay, 15 × 128 = 1,920 go.
    """
    assert snapkv_dropped(RULE, 32, 2500) == 1984
    assert snapkv_tokens_read(RULE, 32, 2500, 2501) == 517
    assert snapkv_blocks_held(RULE, 32, 2500, 2540) == 18
    assert snapkv_most_blocks_held(RULE, 32, 2500, 2540) == 79
    assert snapkv_dropped(RULE, 128, 2500) == 1920


def test_within_the_budget_nothing_goes() -> None:
    """The 17th whole block is full at 544 tokens; then one block's worth goes."""
    assert [snapkv_dropped(RULE, 32, tokens) for tokens in (40, 512, 543, 544)] == [0, 0, 0, 32]
    assert snapkv_tokens_read(RULE, 32, 543, 600) == 600


def test_a_long_answer_outgrows_its_prompt() -> None:
    """600 tokens are 18 whole blocks, 2 go; with 2,000 decoded ones 2,600 − 64 = 2,536: 80."""
    assert snapkv_most_blocks_held(RULE, 32, 600, 2600) == 80


@pytest.mark.parametrize(("budget", "block"), [(512, 32), (500, 128), (96, 16), (65, 32)])
def test_blocks_are_those_of_the_rule_read_block_by_block(budget: int, block: int) -> None:
    rule = SnapKvRule(budget, 64)
    kept = snapkv_blocks_kept(rule, block)
    for prompt in range(1, 1500, 13):
        for context in (prompt + 1, prompt + 77):
            held = [
                index
                for index in range(-(-context // block))
                if index < kept or index >= prompt // block
            ]
            assert snapkv_blocks_held(rule, block, prompt, context) == len(held)
            assert snapkv_most_blocks_held(rule, block, prompt, context) <= -(-context // block)


def test_the_advertised_pool_is_full_attentions_and_the_plan_says_why() -> None:
    model = model_spec(read_config("smollm2-135m-instruct"), name="m")
    flags = {"block_size": 32, "max_num_batched_tokens": 4096, "max_model_len": 4096}
    env = {"KVBENCH_EVICTION": "snapkv=512"}
    cut = predict_capacity(model, settings_from_flags(flags, "cpu", env=env), GIB)
    full = predict_capacity(model, settings_from_flags(flags, "cpu", env={}), GIB)
    assert (cut.num_blocks, cut.max_concurrency) == (full.num_blocks, full.max_concurrency)
    assert [group.kind for group in cut.layer_groups] == ["full"]
    assert any("snapkv=512,observe=64" in note and "16 blocks of 32" in note for note in cut.notes)
