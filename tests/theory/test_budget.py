from __future__ import annotations

import pytest

from harness.theory.budget import (
    BudgetTerm,
    activation_bytes,
    kv_bytes_left,
    plan_budget,
    required_kv_bytes,
    requirement,
)
from harness.theory.capacity import EngineSettings, predict_capacity
from harness.theory.weights import weight_footprint
from harness.units import GIB
from tests.theory.small import shipped, small

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


def test_an_eight_bit_cache_is_a_lever_where_it_halves_a_token() -> None:
    plenty = plan_budget(shipped(LLAMA_3), EngineSettings(), 80 * GIB)
    assert plenty.levers[0].change.startswith("kv_cache_dtype fp8")
    packed = plan_budget(shipped(LLAMA_3), EngineSettings(kv_cache_dtype="fp8"), 80 * GIB)
    assert not any("kv_cache_dtype" in lever.change for lever in packed.levers)


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
