from __future__ import annotations

import pytest

from harness.specs.gpu import gpu_spec
from harness.specs.layers import AttentionLayer
from harness.theory.kv import CacheSpec
from harness.theory.roofline import (
    Ceilings,
    Work,
    beyond,
    ceilings_of,
    compute_bound_batch,
    decode_work,
    kv_exceeds_weights_at,
    kv_read_bytes,
    load_ceilings,
    model_bandwidth_utilization,
    model_flops_utilization,
    prefill_work,
    touched_share,
    visible_pairs,
)
from harness.theory.settings import EngineSettings
from harness.theory.weights import WeightTerm
from tests.theory.small import HYBRID, LLAMA, shipped, small

SETTINGS = EngineSettings()
#: 1 GB/s and 1 GFLOP/s, so that bytes and operations read as nanoseconds.
SLOW = Ceilings("slow", 1e9, 1e9, "made up")

#: Elements of the small model's layers: attention, then feed-forward; and of its head.
LAYERS = 4 * (2 * 512 * 512 + 2 * 512 * 256) + 4 * 3 * 512 * 1024
HEAD = 1024 * 512
NORMS = 9 * 512


def layer(kind: str, window: int | None = None) -> AttentionLayer:
    return AttentionLayer(0, kind, 4, 64, 64, window=window)  # type: ignore[arg-type]


def test_a_decode_step_reads_all_weights_once_and_every_sequences_kv() -> None:
    work = decode_work(small(), SETTINGS, [100, 200])
    assert work.weight_bytes == 2 * (LAYERS + HEAD + NORMS)
    # 4,096 bytes per token
    assert work.kv_bytes == 300 * 4096


def test_a_decode_step_multiplies_and_adds_once_per_weight_and_attends() -> None:
    work = decode_work(small(), SETTINGS, [100])
    # Scores and sums: 2 · 8 heads · (64 + 64) per token and layer.
    attention = 4 * 100 * 2 * 8 * 128
    assert work.flops == 2 * (LAYERS + HEAD) + attention


def test_prefill_attends_causally_and_asks_for_one_set_of_logits() -> None:
    work = prefill_work(small(), SETTINGS, 10)
    pairs = 10 * 11 // 2
    assert work.flops == 2 * (10 * LAYERS + HEAD) + 4 * pairs * 2 * 8 * 128
    assert work.kv_bytes == 10 * 4096


def test_prefill_reads_the_weights_once_per_chunk() -> None:
    one = prefill_work(small(), EngineSettings(max_num_batched_tokens=512), 512)
    three = prefill_work(small(), EngineSettings(max_num_batched_tokens=512), 1025)
    assert three.weight_bytes == 3 * one.weight_bytes


@pytest.mark.parametrize(
    ("kind", "window", "tokens", "pairs"),
    [
        # 1 + 2 + 3 + 4 + 5
        ("full", None, 5, 15),
        # 1 + 2 + 3 + 3 + 3
        ("sliding", 3, 5, 12),
        # 1 + 2 + 3 | 1 + 2
        ("chunked", 3, 5, 9),
        ("sliding", 8, 5, 15),
    ],
)
def test_pairs_of_a_prefill_stay_within_what_a_layer_sees(
    kind: str, window: int | None, tokens: int, pairs: int
) -> None:
    assert visible_pairs(layer(kind, window), tokens) == pairs


@pytest.mark.parametrize(
    ("kind", "window", "tokens", "seen"),
    [("full", None, 100, 100), ("sliding", 64, 100, 64), ("sliding", 64, 10, 10),
     ("chunked", 64, 100, 36), ("chunked", 64, 64, 64)],
)  # fmt: skip
def test_a_step_reads_no_further_back_than_a_layer_sees(
    kind: str, window: int | None, tokens: int, seen: int
) -> None:
    spec = CacheSpec(kind, 16, 1024, (), window=window)  # type: ignore[arg-type]
    assert kv_read_bytes(spec, tokens) == seen * 1024


def test_a_recurrent_state_is_read_and_written_back_whatever_the_context() -> None:
    work = decode_work(small(HYBRID), SETTINGS, [1000])
    assert work.kv_bytes == 3 * 2 * 1600 + 1000 * 1024


def test_a_batch_reads_the_experts_that_it_is_expected_to_touch() -> None:
    experts = WeightTerm("experts", 0, 1000, used=0.25)
    assert touched_share(experts, 1) == 0.25
    # 1 − 0.75²
    assert touched_share(experts, 2) == 0.4375
    assert touched_share(experts, 1000) == pytest.approx(1.0)


def test_a_token_computes_only_with_its_own_experts() -> None:
    model = small(num_local_experts=4, num_experts_per_tok=2)
    dense = decode_work(small(), SETTINGS, [1]).flops
    routed = decode_work(model, SETTINGS, [1]).flops
    # Twice the feed-forward work, and the router.
    assert routed - dense == 2 * (4 * 3 * 512 * 1024 + 4 * 4 * 512)


def test_the_longer_of_computing_and_moving_bounds_a_step() -> None:
    assert Work(2e9, 1e9, 0).least_time(SLOW) == 2.0
    assert Work(1e9, 1e9, 2e9).least_time(SLOW) == 3.0


def test_tensor_parallel_gpus_share_the_work() -> None:
    whole = decode_work(small(), SETTINGS, [100])
    half = decode_work(small(), EngineSettings(tensor_parallel_size=2), [100])
    assert half.kv_bytes == whole.kv_bytes / 2
    assert half.flops == pytest.approx(whole.flops / 2)


def test_one_request_of_an_8b_model_can_not_decode_faster_than_its_weights_are_read() -> None:
    model = shipped("meta-llama/Llama-3.1-8B-Instruct")
    ceilings = ceilings_of(gpu_spec("a100-80gb"), model, SETTINGS)
    # 7.50·10⁹ elements read (8.03 less the embedding) × 2 bytes over 2,039 GB/s.
    seconds = decode_work(model, SETTINGS, [1]).least_time(ceilings)
    assert seconds == pytest.approx(7.505e9 * 2 / 2.039e12, rel=0.001)


def test_ceilings_of_a_load_hold_together() -> None:
    model = shipped("meta-llama/Llama-3.1-8B-Instruct")
    ceilings = ceilings_of(gpu_spec("h100"), model, SETTINGS)
    one = load_ceilings(
        model, SETTINGS, ceilings, concurrency=1, prompt_tokens=1024, output_tokens=128
    )
    many = load_ceilings(
        model, SETTINGS, ceilings, concurrency=64, prompt_tokens=1024, output_tokens=128
    )
    # One request: no faster than a token per step; many: more tokens, not 64 times as many.
    assert one.output_tokens_per_s <= 1.01 / one.tpot_s
    assert one.output_tokens_per_s < many.output_tokens_per_s < 64 * one.output_tokens_per_s
    assert one.ttft_s == many.ttft_s


def test_arithmetic_binds_from_the_batch_at_which_it_takes_longer_than_moving() -> None:
    model = shipped("meta-llama/Llama-3.1-8B-Instruct")
    ceilings = ceilings_of(gpu_spec("h100"), model, SETTINGS)
    batch = compute_bound_batch(model, SETTINGS, ceilings, 1)
    assert batch is not None
    assert decode_work(model, SETTINGS, [1] * batch).compute_bound(ceilings)
    assert not decode_work(model, SETTINGS, [1] * (batch - 1)).compute_bound(ceilings)


def test_with_long_contexts_no_batch_is_bound_by_arithmetic() -> None:
    model = shipped("meta-llama/Llama-3.1-8B-Instruct")
    ceilings = ceilings_of(gpu_spec("h100"), model, SETTINGS)
    assert compute_bound_batch(model, SETTINGS, ceilings, 32768) is None


def test_kv_outgrows_the_weights_at_one_context() -> None:
    # 8,394,752 … elements × 2 bytes over 4,096 bytes per token.
    weights = 2 * (LAYERS + HEAD + NORMS)
    assert kv_exceeds_weights_at(small(), SETTINGS) == weights // 4096 + 1


def test_kv_within_windows_never_outgrows_the_weights() -> None:
    model = small({**LLAMA, "model_type": "mistral", "sliding_window": 64})
    assert kv_exceeds_weights_at(model, SETTINGS) is None


def test_eight_bit_weights_are_held_against_the_eight_bit_rate() -> None:
    gpu = gpu_spec("h100")
    assert ceilings_of(gpu, small(), SETTINGS).flops_per_s == gpu.flops_16bit
    packed = EngineSettings(quantization="fp8")
    assert ceilings_of(gpu, small(), packed).flops_per_s == gpu.flops_8bit


def test_utilisation_is_the_least_that_had_to_be_done_over_time_and_peak() -> None:
    assert model_flops_utilization(1e9, 2.0, SLOW) == 0.5
    assert model_bandwidth_utilization(5e8, 2.0, SLOW) == 0.25


def test_a_measurement_beyond_its_ceiling_is_flagged_in_both_directions() -> None:
    faster = beyond(110.0, 100.0, what="throughput", higher_is_better=True)
    assert faster is not None
    assert "1.10×" in faster
    assert beyond(0.9, 1.0, what="TTFT", higher_is_better=False) is not None
    assert beyond(101.0, 100.0, what="throughput", higher_is_better=True) is None
    assert beyond(5.0, 1.0, what="TTFT", higher_is_better=False) is None
