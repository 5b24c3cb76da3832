"""Blocks and tokens under eviction, worked by hand and held against a token-by-token reading."""

from __future__ import annotations

import pytest

from harness.specs.eviction import EvictionRule, SnapKvRule
from harness.specs.model import model_spec, read_config
from harness.theory.capacity import predict_capacity
from harness.theory.eviction import (
    blocks_held,
    kept_by_ratio,
    least_prefill_pairs,
    most_blocks_held,
    pairs_of_step,
    tokens_read,
)
from harness.theory.kv import layer_caches
from harness.theory.roofline import decode_work, kv_read_bytes, load_work, prefill_work
from harness.theory.settings import EngineSettings, settings_from_flags

RULE = EvictionRule(sinks=32, window=512)
ENV = {"KVBENCH_EVICTION": "sinks=32,window=512"}
FLAGS = {"block_size": 32, "max_num_batched_tokens": 256, "max_model_len": 4096}
GIB = 1 << 30


def by_token(rule: EvictionRule, block: int, computed: int, new: int) -> tuple[int, int]:
    """Blocks held and tokens kept, reading the rule token by token."""
    sinks = -(-rule.sinks // block) * block
    window_begin = computed - rule.window + 1
    kept = [
        position
        for position in range(computed + new)
        if position < sinks or (position // block + 1) * block > window_begin
    ]
    return len({position // block for position in kept}), len(kept)


@pytest.mark.parametrize(
    ("rule", "block"),
    [
        (RULE, 32),
        (EvictionRule(4, 512), 128),
        (EvictionRule(0, 100), 16),
        (EvictionRule(40, 1), 16),
    ],
)
def test_blocks_and_tokens_are_those_of_the_rule(rule: EvictionRule, block: int) -> None:
    for computed in range(0, 1500, 7):
        for new in (1, 64):
            assert (
                blocks_held(rule, block, computed, new) == by_token(rule, block, computed, new)[0]
            )
        assert tokens_read(rule, block, computed + 1) == by_token(rule, block, computed, 1)[1]


def test_a_request_of_3k_tokens_holds_18_of_98_blocks() -> None:
    """Sinks 1 block; at 3,100 computed tokens the window begins at 2,589, block 80 of 0 … 96.

    80 … 96 are 17 blocks, 18 with the sinks; full attention holds ceil(3,101 / 32) = 97, and
    ceil(3,136 / 32) = 98 at the end.
    """
    assert blocks_held(RULE, 32, 3100) == 18
    assert {blocks_held(RULE, 32, computed) for computed in range(3000, 3136)} == {17, 18}


def test_the_worst_moment_counts_tokens_in_flight_and_never_exceeds_the_context() -> None:
    """ceil((511 + 256) / 32) + 1 + 1 = 26; 64 tokens need 2 blocks whatever the rule."""
    assert most_blocks_held(RULE, 32, 4096, 256) == 26
    assert most_blocks_held(RULE, 32, 64, 256) == 2


@pytest.mark.parametrize("chunk", [1, 64, 256])
def test_no_step_ever_holds_more_than_the_worst_moment(chunk: int) -> None:
    held = max(blocks_held(RULE, 32, computed, chunk) for computed in range(0, 4096 - chunk, chunk))
    assert held <= most_blocks_held(RULE, 32, 4096, chunk)


def test_the_servers_environment_decides_the_predicted_pool() -> None:
    """1 GiB of 23,040 B per token in blocks of 32: 1,456; 1,456 / 26 = 56.0, / 128 = 11.375."""
    model = model_spec(read_config("smollm2-135m-instruct"), name="m")
    evicting = predict_capacity(model, settings_from_flags(FLAGS, "cpu", env=ENV), GIB)
    full = predict_capacity(model, settings_from_flags(FLAGS, "cpu", env={}), GIB)
    assert (evicting.num_blocks, full.num_blocks) == (1456, 1456)
    assert (evicting.max_concurrency, full.max_concurrency) == (56.0, 11.375)
    assert evicting.kv_cache_tokens == 229_376
    assert [group.kind for group in evicting.layer_groups] == ["evicting"]
    assert any("sinks=32,window=512" in note for note in evicting.notes)
    assert evicting.bytes_per_further_token == 0


def test_decode_reads_only_what_is_kept() -> None:
    """At 3,001 tokens 569 are read (2,432 dropped); 768 B per token and layer in 16 bit."""
    model = model_spec(read_config("smollm2-135m-instruct"), name="m")
    settings = EngineSettings(device="cpu", block_size=32, eviction=RULE)
    spec = layer_caches(model, settings)[0].spec
    assert kv_read_bytes(spec, 3001) == 569 * 768


def test_a_step_sees_what_was_kept_and_itself_so_far() -> None:
    """After 1,024 tokens 480 are gone (blocks 1 to 15): 256 × 544 + 256 × 257 / 2 = 172,160.

    Nothing is gone before the window is left: 256 after 256 are 256 × 256 + 32,896 = 98,432.
    """
    assert pairs_of_step(RULE, 32, 1024, 256) == 172_160
    assert pairs_of_step(RULE, 32, 256, 256) == 98_432


def test_the_pairs_of_a_prompt_are_those_of_all_its_tokens_read_one_by_one() -> None:
    """Sinks 1, window 2, blocks of 1: tokens see 1, 2, 3, 3, 3 (the third from the sink too)."""
    assert least_prefill_pairs(EvictionRule(1, 2), 1, 5) == 1 + 2 + 3 + 3 + 3
    read = sum(tokens_read(RULE, 32, context) for context in range(1, 2001))
    assert least_prefill_pairs(RULE, 32, 2000) == read


@pytest.mark.parametrize("step", [64, 256, 2048])
def test_no_cut_into_steps_has_fewer_pairs(step: int) -> None:
    cut = sum(
        pairs_of_step(RULE, 32, start, min(step, 3000 - start)) for start in range(0, 3000, step)
    )
    assert least_prefill_pairs(RULE, 32, 3000) <= cut <= 3000 * 3001 // 2


def test_within_the_budget_eviction_spares_no_work() -> None:
    """544 tokens are the budget: 544 × 545 / 2 pairs, as with full attention."""
    model = model_spec(read_config("smollm2-135m-instruct"), name="m")
    full = EngineSettings(device="cpu", block_size=32)
    evicting = EngineSettings(device="cpu", block_size=32, eviction=RULE)
    assert least_prefill_pairs(RULE, 32, 544) == 148_240
    assert prefill_work(model, evicting, 544) == prefill_work(model, full, 544)
    assert decode_work(model, evicting, [544]) == decode_work(model, full, [544])


def test_beyond_the_budget_attention_counts_only_what_is_kept() -> None:
    """A pair is 2 · 9 heads · (64 + 64) FLOPs in each of 30 layers; at 3,001 tokens 2,432 are gone.

    Bytes: 768 per token and layer. The linear layers and the weights are the same.
    """
    model = model_spec(read_config("smollm2-135m-instruct"), name="m")
    full = EngineSettings(device="cpu", block_size=32)
    evicting = EngineSettings(device="cpu", block_size=32, eviction=RULE)
    pair = 30 * 2 * 9 * 128
    before, after = decode_work(model, full, [3001]), decode_work(model, evicting, [3001])
    assert before.flops - after.flops == 2432 * pair
    assert before.kv_bytes - after.kv_bytes == 2432 * 30 * 768
    assert before.weight_bytes == after.weight_bytes
    spared = 3000 * 3001 // 2 - least_prefill_pairs(RULE, 32, 3000)
    before, after = prefill_work(model, full, 3000), prefill_work(model, evicting, 3000)
    assert before.flops - after.flops == spared * pair
    assert before.kv_bytes == after.kv_bytes


def test_the_work_of_a_load_follows_the_rule() -> None:
    model = model_spec(read_config("smollm2-135m-instruct"), name="m")
    works = [
        load_work(
            model,
            EngineSettings(device="cpu", block_size=32, eviction=rule),
            concurrency=8,
            prompt_tokens=1536,
            output_tokens=64,
        )
        for rule in (None, RULE)
    ]
    assert works[1].flops < works[0].flops
    assert works[1].kv_bytes < works[0].kv_bytes
    assert works[1].weight_bytes == works[0].weight_bytes


def test_a_prompt_cut_by_score_is_read_cut_when_it_decodes() -> None:
    """1,536 tokens in blocks of 32 keep 16 of 48: 1,024 are gone for each of 63 decode steps.

    Prefill and its pairs are full attention's; a pair is 2 · 9 · 128 FLOPs, a token 768 bytes, in
    each of 30 layers.
    """
    model = model_spec(read_config("smollm2-135m-instruct"), name="m")
    full = EngineSettings(device="cpu", block_size=32)
    cut = EngineSettings(device="cpu", block_size=32, snapkv=SnapKvRule(512))
    before, after = (
        load_work(model, settings, concurrency=8, prompt_tokens=1536, output_tokens=64)
        for settings in (full, cut)
    )
    assert before.kv_bytes - after.kv_bytes == 8 * 63 * 1024 * 30 * 768
    assert before.flops - after.flops == 8 * 63 * 1024 * 30 * 2 * 9 * 128
    assert prefill_work(model, cut, 1536) == prefill_work(model, full, 1536)


def test_a_ratio_leaves_the_rest_of_a_prefill() -> None:
    """1,536 × 0.333 = 511.5, cut off to 511; at 0.5 half; at 0 all."""
    assert [kept_by_ratio(1536, ratio) for ratio in (0.667, 0.5, 0.0)] == [511, 768, 1536]
