from __future__ import annotations

from typing import Any

import pytest

from harness.errors import InputError, UnsupportedModel
from harness.theory.kv import (
    CacheSpec,
    blocks_of_request,
    bytes_per_token,
    kv_heads_per_gpu,
    layer_caches,
    resolved_kv_dtype,
)
from harness.theory.settings import EngineSettings, settings_from_flags, with_default_step
from tests.theory.small import HYBRID, LATENT, LLAMA, small


def specs(model: Any, **settings: Any) -> list[CacheSpec]:
    return [cache.spec for cache in layer_caches(model, EngineSettings(**settings))]


def test_a_token_costs_k_and_v_of_every_layer() -> None:
    # 4 layers × 4 heads × (64 + 64) × 2 bytes
    assert bytes_per_token(layer_caches(small(), EngineSettings())) == 4096
    assert bytes_per_token(layer_caches(small(), EngineSettings(kv_cache_dtype="fp8"))) == 2048


def test_a_page_is_a_block_of_one_layer() -> None:
    assert specs(small())[0].page_bytes == 16 * 1024
    assert specs(small(), block_size=32)[0].page_bytes == 32 * 1024
    assert specs(small(), device="cpu")[0].block_size == 128


@pytest.mark.parametrize(("tp", "heads"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_kv_heads_are_split_and_beyond_their_number_replicated(tp: int, heads: int) -> None:
    assert kv_heads_per_gpu(4, tp) == heads


def test_heads_that_can_be_neither_split_nor_replicated_are_an_error() -> None:
    with pytest.raises(InputError, match="4 KV heads"):
        kv_heads_per_gpu(4, 3)


def test_latent_caches_are_replicated_over_tensor_parallel_gpus() -> None:
    for tp in (1, 8):
        assert specs(small(LATENT), tensor_parallel_size=tp)[0].token_bytes == 128 * 2


def test_latent_caches_on_a_cpu_without_amx_have_blocks_of_16() -> None:
    assert specs(small(LATENT), device="cpu", block_size=64)[0].block_size == 16
    amx = frozenset({"amx"})
    assert specs(small(LATENT), device="cpu", cpu_features=amx)[0].block_size == 128


def test_auto_is_the_models_dtype_unless_the_checkpoint_says_otherwise() -> None:
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}
    quantised = small(quantization_config=scheme)
    assert resolved_kv_dtype(small(), EngineSettings()).name == "bfloat16"
    assert resolved_kv_dtype(small(), EngineSettings(dtype="float16")).name == "float16"
    assert resolved_kv_dtype(quantised, EngineSettings()).name == "fp8"
    explicit = EngineSettings(kv_cache_dtype="bfloat16")
    assert resolved_kv_dtype(quantised, explicit).name == "bfloat16"


def test_a_sliding_layer_takes_a_whole_kernel_block_within_the_others_block() -> None:
    # On the CPU kernels take multiples of 32: of a block of 48 a sliding layer uses 32.
    model = small({**LLAMA, "model_type": "gemma2", "sliding_window": 64})
    blocks = [spec.block_size for spec in specs(model, device="cpu", block_size=48)]
    assert blocks == [32, 48, 32, 48]


# --- recurrent states ----------------------------------------------------------------------------


def test_the_attention_block_grows_until_its_page_covers_a_state() -> None:
    # A state is 1,600 bytes, a token 1,024: two tokens would do, the kernel's 16 are taken.
    recurrent, attention = specs(small(HYBRID))[0], specs(small(HYBRID))[3]
    assert (recurrent.kind, recurrent.state_bytes) == ("recurrent", 1600)
    assert attention.block_size == 16
    assert recurrent.page_bytes == attention.page_bytes == 16 * 1024


def test_a_large_state_raises_the_block_by_whole_kernel_blocks() -> None:
    # Key heads of 2,048: 4 matrices of 8 × 2,048 and 8,224 channels × 3 rows, 2 bytes each:
    # 131,072 + 49,344 = 180,416 bytes; / 1,024 = 176.2 tokens → 11.01 kernel blocks → 192.
    model = small(HYBRID, linear_key_head_dim=2048)
    assert specs(model)[0].state_bytes == 180_416
    assert specs(model)[3].block_size == 192


def test_states_are_split_over_tensor_parallel_gpus() -> None:
    assert specs(small(HYBRID), tensor_parallel_size=2)[0].state_bytes == 800


def test_a_state_that_can_not_be_split_is_an_error() -> None:
    odd = small(HYBRID, linear_num_value_heads=3)
    with pytest.raises(InputError, match="recurrent state"):
        specs(odd, tensor_parallel_size=2)


def test_groups_that_do_not_divide_are_replicated() -> None:
    scan = {
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "n_groups": 1,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "hybrid_override_pattern": "M*",
        "num_hidden_layers": 2,
    }
    model = small({**LLAMA, "model_type": "nemotron_h", **scan})
    # Whole: (32 + 1·2·16) channels · 3 rows · 2 B + 4 · 8 · 16 · 4 B = 384 + 2,048.
    assert specs(model)[0].state_bytes == 2432
    # Two GPUs, two copies of the group: (32 + 2·2·16) / 2 · 3 · 2 + 1,024 = 288 + 1,024.
    assert specs(model, tensor_parallel_size=2)[0].state_bytes == 1312


def test_each_draft_token_keeps_one_row_of_the_convolution_and_one_state_more() -> None:
    state = specs(small(HYBRID), num_speculative_tokens=2)[0]
    # 96 channels × 2 rows × 2 bytes more.
    assert state.state_bytes == 1600 + 384
    assert state.states == 4


def test_prefix_caching_keeps_a_second_state() -> None:
    assert specs(small(HYBRID))[0].states == 2
    assert specs(small(HYBRID), enable_prefix_caching=True)[0].states == 2
    assert specs(small(HYBRID), enable_prefix_caching=False)[0].states == 1


def test_a_kernel_that_saves_states_within_a_prefill_keeps_a_third() -> None:
    scan = {
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_n_groups": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_d_ssm": 32,
    }
    model = small({**LLAMA, "model_type": "falcon_h1", **scan})
    assert specs(model)[0].states == 3
    assert specs(model, enable_prefix_caching=False)[0].states == 1


def test_a_model_without_attention_has_no_prefix_caching_by_default() -> None:
    scan = {"model_type": "mamba", "num_hidden_layers": 2, "state_size": 16, "conv_kernel": 4}
    model = small({**LLAMA, **scan})
    assert [spec.states for spec in specs(model)] == [1, 1]


def test_the_flag_and_the_cpu_decide_on_the_dtype_of_the_matrix() -> None:
    # The matrices are 512 elements: 1,024 bytes more in float32.
    assert specs(small(HYBRID), mamba_ssm_cache_dtype="float32")[0].state_bytes == 2624
    bf16 = frozenset({"avx512_bf16"})
    assert specs(small(HYBRID), device="cpu", cpu_features=bf16)[0].state_bytes == 2624


# --- packed formats ------------------------------------------------------------------------------


def test_packed_formats_leave_two_layers_at_each_end_in_the_models_dtype() -> None:
    model = small(num_hidden_layers=6)
    sizes = [spec.token_bytes for spec in specs(model, kv_cache_dtype="turboquant_4bit_nc")]
    # Packed: 4 heads × ((32 + 2) + (32 + 4)) = 280 bytes.
    assert sizes == [1024, 1024, 280, 280, 1024, 1024]


def test_the_block_grows_until_a_packed_page_covers_a_plain_one() -> None:
    # 16 plain tokens are 16,384 bytes; 16 packed ones 4,480: 4 kernel blocks of them cover it.
    model = small(num_hidden_layers=6)
    assert {spec.block_size for spec in specs(model, kv_cache_dtype="turboquant_4bit_nc")} == {64}


def test_layers_named_in_skip_layers_keep_the_models_dtype() -> None:
    sizes = [
        spec.token_bytes
        for spec in specs(small(), kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=("1",))
    ]
    assert sizes == [512, 1024, 512, 512]


def test_skipped_layers_beside_windows_are_refused() -> None:
    model = small({**LLAMA, "model_type": "gemma2", "sliding_window": 64})
    with pytest.raises(UnsupportedModel, match="window"):
        specs(model, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=("sliding_window",))


def test_layers_that_ignore_the_kv_dtype_keep_the_models() -> None:
    model = small({**LLAMA, "model_type": "falcon", "multi_query": True})
    assert {spec.token_bytes for spec in specs(model, kv_cache_dtype="fp8")} == {256}


# --- what a request needs ------------------------------------------------------------------------


def need(kind: str, tokens: int, window: int | None = None, **settings: Any) -> int:
    spec = CacheSpec(kind, 16, 1024, (), window=window)  # type: ignore[arg-type]
    return blocks_of_request(spec, tokens, EngineSettings(**settings))


def test_full_attention_needs_whole_blocks() -> None:
    assert [need("full", tokens) for tokens in (1, 16, 17, 4096)] == [1, 1, 2, 256]


def test_the_chapters_three_requests_need_32_128_and_7_blocks() -> None:
    assert [need("full", tokens) for tokens in (500, 2048, 100)] == [32, 128, 7]


def test_context_parallel_ranks_share_the_tokens() -> None:
    # 100 tokens over 4 ranks are 25 each: 2 blocks.
    assert need("full", 100, decode_context_parallel_size=4, tensor_parallel_size=4) == 2


def test_a_window_needs_itself_the_step_in_flight_and_a_block_for_its_edge() -> None:
    one_step = {"max_num_batched_tokens": 512, "async_scheduling": False}
    # 127 + 512 = 639 tokens are 40 blocks, and one.
    assert need("sliding", 4096, 128, **one_step) == 41
    # A short request needs no more than its own tokens, and one.
    assert need("sliding", 100, 128, **one_step) == 8


def test_two_steps_are_in_flight_on_cuda_unless_told_otherwise() -> None:
    # 127 + 1,024 = 1,151 tokens are 72 blocks, and one.
    assert need("sliding", 4096, 128, max_num_batched_tokens=512) == 73


def test_a_chunk_needs_itself_and_the_step_in_flight() -> None:
    # 128 + 512 = 640 tokens: 40 blocks, aligned, so no more.
    assert need("chunked", 4096, 128, max_num_batched_tokens=512, async_scheduling=False) == 40


def test_several_draft_modules_keep_tokens_below_the_window() -> None:
    spec = CacheSpec("sliding", 16, 1024, (), window=128, retained=3)
    settings = EngineSettings(max_num_batched_tokens=513, async_scheduling=False)
    # 127 + 3 + 513 = 643 tokens: 41 blocks, and one.
    assert blocks_of_request(spec, 4096, settings) == 42


# --- settings ------------------------------------------------------------------------------------


def test_layers_with_windows_are_allocated_in_full_without_the_hybrid_manager() -> None:
    model = small({**LLAMA, "model_type": "gemma2", "sliding_window": 64})
    kinds = [spec.kind for spec in specs(model, disable_hybrid_kv_cache_manager=True)]
    assert kinds == ["full"] * 4


def test_windows_everywhere_stay_windows_without_the_hybrid_manager() -> None:
    model = small({**LLAMA, "model_type": "mistral", "sliding_window": 64})
    kinds = [spec.kind for spec in specs(model, disable_hybrid_kv_cache_manager=True)]
    assert kinds == ["sliding"] * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tensor_parallel_size": 3}, "8 attention heads"),
        ({"pipeline_parallel_size": 5}, "exceeds 4 layers"),
        ({"tensor_parallel_size": 2, "decode_context_parallel_size": 2}, "replicas"),
        ({"tensor_parallel_size": 4, "decode_context_parallel_size": 3}, "must divide"),
    ],
)
def test_settings_that_the_model_can_not_be_split_by_are_errors(
    settings: dict[str, int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        specs(small(), **settings)


def test_context_parallel_layers_may_have_no_window() -> None:
    model = small({**LLAMA, "model_type": "mistral", "sliding_window": 64})
    with pytest.raises(InputError, match="window"):
        specs(model, tensor_parallel_size=8, decode_context_parallel_size=2)


def test_flags_in_the_engines_spelling_become_settings_and_others_are_ignored() -> None:
    settings = settings_from_flags(
        {
            "kv_cache_dtype": "fp8",
            "max_model_len": 4096,
            "enable_prefix_caching": False,
            "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
            "seed": 0,
        },
        "cuda",
    )
    assert settings == EngineSettings(
        kv_cache_dtype="fp8",
        max_model_len=4096,
        enable_prefix_caching=False,
        num_speculative_tokens=2,
    )


def in_flight(device: str, **flags: Any) -> int:
    return settings_from_flags(flags, device).batches_in_flight  # type: ignore[arg-type]


def test_one_step_is_in_flight_per_stage_and_one_more_where_the_scheduler_runs_ahead() -> None:
    assert [in_flight("cuda"), in_flight("cuda", pipeline_parallel_size=2)] == [2, 3]
    assert in_flight("cuda", async_scheduling=False) == 1
    assert in_flight("cuda", async_scheduling=False, pipeline_parallel_size=2) == 2
    # The CPU never runs ahead, whatever it is told.
    assert in_flight("cpu", async_scheduling=True) == 1
    assert in_flight("cpu", pipeline_parallel_size=2) == 2


def test_the_step_that_is_not_stated_is_that_of_the_smallest_card() -> None:
    gib = 1 << 30
    h100, a100, b200 = (80 * gib, "H100"), (80 * gib, "NVIDIA A100-SXM4-80GB"), (180 * gib, "B200")
    steps = [
        with_default_step({}, "cuda", cards).get("max_num_batched_tokens")
        for cards in ([h100], [a100], [b200], [b200, h100], [(None, "GPU")], [])
    ]
    assert steps == [8192, 2048, 16384, 8192, None, None]
    stated = {"max_num_batched_tokens": 512}
    assert with_default_step(stated, "cuda", [h100]) == stated
    # The CPU build's step is its own, whatever card lies beside it.
    assert with_default_step({}, "cpu", [h100]) == {}


def test_drafts_that_need_a_steps_result_keep_the_scheduler_from_running_ahead() -> None:
    def drafting(**config: Any) -> int:
        return in_flight("cuda", speculative_config={"num_speculative_tokens": 3, **config})

    assert [drafting(method=m) for m in ("mtp", "eagle3", "ngram_gpu")] == [2, 2, 2]
    assert [drafting(method=m) for m in ("ngram", "suffix", "medusa")] == [1, 1, 1]
    assert drafting(method="eagle", disable_padded_drafter_batch=True) == 1


def test_flags_and_settings_without_any_mean_the_same_steps_in_flight() -> None:
    # calc and advise make settings by themselves, plan and the reports from a server's flags.
    for device in ("cuda", "cpu"):
        assert settings_from_flags({}, device) == EngineSettings(device=device)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["block_size", "max_model_len", "tensor_parallel_size"])
def test_counts_below_one_are_errors(name: str) -> None:
    with pytest.raises(InputError, match=name):
        EngineSettings(**{name: 0})
