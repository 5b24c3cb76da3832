from __future__ import annotations

import pytest

from harness.theory.budget import (
    BudgetTerm,
    Lever,
    MemoryBudget,
    activation_bytes,
    kv_bytes_left,
    plan_budget,
    required_kv_bytes,
    requirement,
)
from harness.theory.capacity import EngineSettings, predict_capacity
from harness.theory.weights import weight_footprint
from harness.units import GIB
from tests.theory.small import LATENT, shipped, small

LLAMA_3 = "meta-llama/Meta-Llama-3-8B"


def test_the_pool_is_the_allowed_share_less_every_term() -> None:
    terms = [BudgetTerm("weights", 16 * GIB, ""), BudgetTerm("overhead", 2 * GIB, "")]
    assert kv_bytes_left(80 * GIB, 1.0, terms) == 62 * GIB
    assert kv_bytes_left(80 * GIB, 0.9, terms) == 54 * GIB


def test_given_figures_replace_the_estimates() -> None:
    budget = plan_budget(
        shipped(LLAMA_3),
        EngineSettings(),
        80 * GIB,
        utilization=1.0,
        weights_bytes=16 * GIB,
        overhead_bytes=2 * GIB,
    )
    assert budget.kv_bytes == 62 * GIB
    assert [term.assumption for term in budget.terms] == ["as given", "as given"]


def test_every_estimate_carries_its_assumption() -> None:
    budget = plan_budget(shipped(LLAMA_3), EngineSettings(), 80 * GIB)
    assert all(term.assumption for term in budget.terms)
    weights = weight_footprint(shipped(LLAMA_3), EngineSettings()).bytes_per_gpu
    assert budget.terms[0].bytes == weights


def test_a_model_that_does_not_fit_has_a_negative_pool_and_levers() -> None:
    budget = plan_budget(shipped(LLAMA_3), EngineSettings(), 16 * GIB)
    assert budget.kv_bytes < 0
    assert not budget.fits
    gains = [lever.gained_bytes for lever in budget.levers]
    assert gains == sorted(gains, reverse=True)
    assert "tensor_parallel_size" in budget.levers[0].change


def lever(budget: MemoryBudget, beginning: str) -> Lever:
    return next(found for found in budget.levers if found.change.startswith(beginning))


def test_an_eight_bit_cache_is_a_lever_where_a_token_takes_less() -> None:
    plenty = plan_budget(shipped(LLAMA_3), EngineSettings(), 80 * GIB)
    # A token takes half, so the pool is worth twice its bytes.
    assert lever(plenty, "kv_cache_dtype fp8").gained_bytes == plenty.kv_bytes
    packed = plan_budget(shipped(LLAMA_3), EngineSettings(kv_cache_dtype="fp8"), 80 * GIB)
    assert not any("kv_cache_dtype" in found.change for found in packed.levers)


def test_a_lever_is_told_in_requests_that_fit_once_it_is_pulled() -> None:
    budget = plan_budget(
        shipped(LLAMA_3),
        EngineSettings(),
        80 * GIB,
        utilization=0.9,
        weights_bytes=16 * GIB,
        overhead_bytes=2 * GIB,
        context_tokens=8192,
    )
    # 0.9 · 80 − 18 = 54 GiB hold 54 requests of 8,192 tokens (1 GiB each). On each of two GPUs half
    # of a request lies and half of the weights: (72 − 8 − 2) / 0.5 = 124, worth 124 − 54 GiB.
    twice = lever(budget, "twice the GPUs")
    assert (twice.requests, twice.gained_bytes, twice.context_tokens) == (124.0, 70 * GIB, 8192)
    assert lever(budget, "kv_cache_dtype fp8").requests == 108.0
    # 0.95 · 80 − 18.
    assert lever(budget, "gpu_memory_utilization").requests == 58.0
    assert budget.levers[0] == twice


def test_a_latent_cache_lies_whole_on_every_gpu_so_only_weights_are_spared() -> None:
    model = small(LATENT, qk_nope_head_dim=64, v_head_dim=64, q_lora_rank=None)
    budget = plan_budget(model, EngineSettings(), 4 * GIB, weights_bytes=2 * GIB, overhead_bytes=0)
    assert lever(budget, "twice the GPUs").gained_bytes == GIB


def test_mxfp4_weights_are_taken_as_much_larger_as_they_load() -> None:
    model = shipped("openai/gpt-oss-120b")
    four = EngineSettings(tensor_parallel_size=4)
    term = plan_budget(model, four, 80 * GIB).terms[0]
    # A published start-up line says 17.22 GiB on each of four GPUs.
    assert term.bytes / GIB == pytest.approx(17.2217, rel=0.005)
    assert "MXFP4 is padded" in term.assumption
    plain = plan_budget(shipped(LLAMA_3), EngineSettings(quantization="fp8"), 80 * GIB).terms[0]
    assert "estimate: what fp8 leaves plain" in plain.assumption


def test_activations_grow_with_the_step_not_with_the_context() -> None:
    short = EngineSettings(max_num_batched_tokens=2048, max_model_len=1024)
    long = EngineSettings(max_num_batched_tokens=2048, max_model_len=4096)
    wide = EngineSettings(max_num_batched_tokens=8192)
    assert activation_bytes(small(), short) == activation_bytes(small(), long)
    # 6,144 tokens more × (4 · 512 + 3 · 1,024) elements × 2 bytes.
    difference = activation_bytes(small(), wide) - activation_bytes(small(), short)
    assert difference == 6144 * 5120 * 2


def test_requests_need_their_blocks_and_the_one_that_is_kept_back() -> None:
    capacity = predict_capacity(small(), EngineSettings(), None)
    # 10 requests of 100 tokens: 7 blocks each, and one.
    assert required_kv_bytes(capacity, 10, 100) == 71 * 65536


def test_the_required_memory_runs_the_requests() -> None:
    capacity = predict_capacity(small(), EngineSettings(), None)
    budget = required_kv_bytes(capacity, 10, 4096)
    held = predict_capacity(small(), EngineSettings(), budget)
    assert held.num_blocks is not None
    assert (held.num_blocks - 1) // held.blocks_per_request(4096) == 10


def test_the_utilisation_that_requests_need_may_exceed_one() -> None:
    capacity = predict_capacity(shipped(LLAMA_3), EngineSettings(), None)
    budget = plan_budget(
        shipped(LLAMA_3),
        EngineSettings(),
        80 * GIB,
        utilization=1.0,
        weights_bytes=16 * GIB,
        overhead_bytes=2 * GIB,
    )
    # 16 GiB per request at 128K: (16 + 2 + 64) / 80, and one block.
    need = requirement(capacity, 4, 131072, budget=budget)
    assert need.utilization == pytest.approx(82 / 80, abs=0.001)
    assert requirement(capacity, 4, 131072).utilization is None
