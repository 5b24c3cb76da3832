from __future__ import annotations

from typing import Any

import pytest

from harness.errors import InputError
from harness.theory.capacity import EngineSettings, kv_memory_for_tokens, predict_capacity
from harness.units import GIB, MIB
from tests.theory.small import HYBRID, LLAMA, shipped, small, with_kv_heads

LLAMA_3 = "meta-llama/Meta-Llama-3-8B"
#: An 80 GB A100 with 16 GB of weights and 2 GB of overhead.
EXERCISE = 62 * GIB


# --- the chapter's exercises ---------------------------------------------------------------------


def test_the_chapters_model_stores_131072_bytes_per_token() -> None:
    # 2 · 32 layers · 8 KV heads · 128 · 2 bytes
    assert predict_capacity(shipped(LLAMA_3), EngineSettings(), None).kv_bytes_per_token == 131072


@pytest.mark.parametrize(
    ("tokens", "mib"), [(2048, 256), (8192, 1024), (32768, 4096), (131072, 16384)]
)
def test_exercise_1_one_ten_and_a_hundred_requests(tokens: int, mib: int) -> None:
    one = predict_capacity(shipped(LLAMA_3), EngineSettings(), None).kv_bytes_per_request(tokens)
    assert one == mib * MIB
    assert 10 * one == 10 * mib * MIB
    assert 100 * one == 100 * mib * MIB


@pytest.mark.parametrize(
    ("tokens", "requests"), [(2048, 248), (8192, 62), (32768, 15), (131072, 3)]
)
def test_exercise_1_requests_that_fit(tokens: int, requests: int) -> None:
    capacity = predict_capacity(shipped(LLAMA_3), EngineSettings(), EXERCISE)
    concurrency = capacity.concurrency(tokens)
    assert concurrency is not None
    assert int(concurrency) == requests


@pytest.mark.parametrize(("kv_heads", "mib", "requests"), [(32, 4096, 3), (8, 1024, 15)])
def test_exercise_2_mha_against_gqa(kv_heads: int, mib: int, requests: int) -> None:
    model = with_kv_heads(shipped(LLAMA_3), kv_heads)
    capacity = predict_capacity(model, EngineSettings(), EXERCISE)
    assert capacity.kv_bytes_per_request(8192) == mib * MIB
    assert int(capacity.concurrency(32768) or 0) == requests


def test_exercise_2_mqa_at_8k() -> None:
    model = with_kv_heads(shipped(LLAMA_3), 1)
    assert predict_capacity(model, EngineSettings(), None).kv_bytes_per_request(8192) == 128 * MIB


@pytest.mark.parametrize(("dtype", "mib"), [("float16", 4096), ("fp8", 2048)])
def test_sixteen_against_eight_bits_at_32k(dtype: str, mib: int) -> None:
    capacity = predict_capacity(shipped(LLAMA_3), EngineSettings(kv_cache_dtype=dtype), None)
    assert capacity.kv_bytes_per_request(32768) == mib * MIB


def test_the_chapters_printed_figures_are_the_eight_bit_ones() -> None:
    capacity = predict_capacity(shipped(LLAMA_3), EngineSettings(kv_cache_dtype="fp8"), EXERCISE)
    found = [int(capacity.concurrency(n) or 0) for n in (2048, 8192, 32768, 131072)]
    assert found == [496, 124, 31, 7]


# --- what was measured on a real server (docs/theory.md) -----------------------------------------


@pytest.mark.parametrize(
    ("kv_heads", "dtype", "tokens"),
    [(3, "auto", 46592), (3, "fp8", 93184), (9, "auto", 15488), (1, "auto", 139776)],
)
def test_one_gib_on_the_cpu_holds_what_the_server_said(
    kv_heads: int, dtype: str, tokens: int
) -> None:
    model = with_kv_heads(shipped("smollm2-135m-instruct"), kv_heads)
    settings = EngineSettings(device="cpu", kv_cache_dtype=dtype, max_model_len=4096)
    assert predict_capacity(model, settings, GIB).kv_cache_tokens == tokens


# --- pools ---------------------------------------------------------------------------------------


def test_without_a_budget_the_pool_is_unknown_and_the_need_is_not() -> None:
    capacity = predict_capacity(small(), EngineSettings(), None)
    assert capacity.num_blocks is None
    assert capacity.kv_cache_tokens is None
    assert capacity.concurrency(4096) is None
    # 4 layers × 16 tokens × 1,024 bytes
    assert capacity.bytes_per_block == 65536
    assert capacity.blocks_per_request(4096) == 256


def test_a_budget_is_cut_into_whole_blocks() -> None:
    capacity = predict_capacity(small(), EngineSettings(), 10 * 65536 + 65535)
    assert capacity.num_blocks == 10
    assert capacity.max_concurrency == 10 / 256
    assert capacity.kv_cache_tokens == 160


def test_a_given_number_of_blocks_is_taken() -> None:
    assert predict_capacity(small(), EngineSettings(), 0, num_blocks=512).max_concurrency == 2.0


def test_a_negative_budget_is_an_error() -> None:
    with pytest.raises(InputError, match="negative"):
        predict_capacity(small(), EngineSettings(), -1)


def test_the_narrowest_pipeline_stage_decides() -> None:
    # 4 layers in 3 stages: 1, 2, 1. The stage with two has the fewest blocks.
    settings = EngineSettings(pipeline_parallel_size=3)
    assert predict_capacity(small(), settings, 20 * 32768).num_blocks == 20


def test_a_hybrid_costs_a_fixed_part_and_a_slope() -> None:
    capacity = predict_capacity(small(HYBRID), EngineSettings(), None)
    # One block of one layer is 16 × 1,024 bytes; three groups of states, two states each.
    assert capacity.bytes_per_block == 16384
    assert capacity.fixed_bytes_per_request == 6 * 16384
    assert capacity.bytes_per_further_token == 1024
    assert capacity.kv_bytes_per_request(1600) == (100 + 6) * 16384


def test_draft_layers_widen_the_pool_and_drafts_add_states() -> None:
    model = small(HYBRID, num_nextn_predict_layers=1)
    capacity = predict_capacity(model, EngineSettings(num_speculative_tokens=1), None)
    kinds = [(g.kind, g.layers, g.blocks_per_request) for g in capacity.layer_groups]
    # Two attention layers now: the three recurrent ones form groups of 2 and 1, 3 states each.
    assert kinds == [("recurrent", 2, 3), ("recurrent", 1, 3), ("full", 2, 256)]
    assert capacity.bytes_per_block == 2 * 16384


def test_windows_say_what_they_are_charged_with() -> None:
    model = small({**LLAMA, "model_type": "gemma2", "sliding_window": 64})

    def told(**settings: Any) -> str:
        notes = predict_capacity(model, EngineSettings(**settings), None).notes
        return next(note for note in notes if "in flight" in note)

    assert "1,024 tokens in flight (2 × max_num_batched_tokens 512); one step fewer" in told(
        max_num_batched_tokens=512
    )
    one = told(max_num_batched_tokens=512, async_scheduling=False)
    assert one.endswith("512 tokens in flight (1 × max_num_batched_tokens 512)")
    # Where neither the step nor the card is known, the smallest default is a guess and says so.
    assert "the default step grows with the card" in told()
    assert "grows with the card" not in told(device="cpu")


def test_a_raised_block_is_told() -> None:
    notes = predict_capacity(small(HYBRID, linear_key_head_dim=2048), EngineSettings(), None).notes
    assert any("raised to 192 tokens" in note for note in notes)
    assert not any(
        "raised" in n for n in predict_capacity(small(HYBRID), EngineSettings(), None).notes
    )


# --- the inverse ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 4096, 10_000, 123_457])
@pytest.mark.parametrize(
    "base", [LLAMA, HYBRID, {**LLAMA, "model_type": "gemma2", "sliding_window": 64}]
)
def test_the_memory_for_so_many_tokens_holds_them(base: dict[str, object], tokens: int) -> None:
    settings = EngineSettings(max_num_batched_tokens=512)
    budget = kv_memory_for_tokens(small(base), settings, tokens)
    capacity = predict_capacity(small(base), settings, budget)
    assert capacity.kv_cache_tokens is not None
    assert capacity.kv_cache_tokens >= tokens
    # One block less would not hold them, or would not hold one request and the null block.
    fewer = predict_capacity(small(base), settings, budget - 1)
    need = capacity.blocks_per_request(capacity.max_model_len)
    assert (fewer.kv_cache_tokens or 0) < tokens or (fewer.num_blocks or 0) <= need
