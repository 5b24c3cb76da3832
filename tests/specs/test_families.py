"""How layers are laid out, family by family, on configs small enough to count by hand."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import ModelConfigError, UnsupportedModel
from harness.specs.families import cached_layers, draft_layers
from harness.specs.fields import Fields
from harness.specs.layers import AttentionLayer, ConvState, Layer, MatrixState, RecurrentLayer
from harness.specs.windows import WINDOW_RULES

BASE = {"num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 512}


def layers(model_type: str, count: int, **config: Any) -> tuple[Layer, ...]:
    return cached_layers(
        Fields({**BASE, "model_type": model_type, "num_hidden_layers": count, **config}, "small")
    )


def attention(found: tuple[Layer, ...]) -> list[AttentionLayer]:
    return [layer for layer in found if isinstance(layer, AttentionLayer)]


def kinds(found: tuple[Layer, ...]) -> str:
    letters = {"full": "F", "sliding": "S", "chunked": "C", "mla": "M"}
    return "".join(
        "R" if isinstance(layer, RecurrentLayer) else letters[layer.kind] for layer in found
    )


def test_plain_layers_keep_k_and_v_of_the_same_heads() -> None:
    assert layers("llama", 2) == (
        AttentionLayer(0, "full", 4, 64, 64),
        AttentionLayer(1, "full", 4, 64, 64),
    )


@pytest.mark.parametrize(
    ("model_type", "count", "config", "expected"),
    [
        ("mistral", 3, {"sliding_window": 64}, "SSS"),
        ("mistral", 3, {"sliding_window": None}, "FFF"),
        ("gemma2", 4, {"sliding_window": 64}, "SFSF"),
        ("gemma3_text", 7, {"sliding_window": 64, "sliding_window_pattern": 6}, "SSSSSFS"),
        ("cohere2", 5, {"sliding_window": 64}, "SSSFS"),
        ("cohere2_moe", 5, {"sliding_window": 64}, "SSSFS"),
        ("cohere2_moe", 6, {"sliding_window": 64, "first_k_dense_replace": 2}, "FFSSSF"),
        ("olmo3", 4, {"sliding_window": 64}, "SSSF"),
        ("exaone4", 6, {"sliding_window": 64, "sliding_window_pattern": "LLLG"}, "SSSFSF"),
        ("exaone4", 2, {"sliding_window": None}, "FF"),
        ("gpt_oss", 4, {"sliding_window": 64}, "SFSF"),
        ("gemma4_text", 4, {"sliding_window": 64}, "SSSF"),
        ("llama4_text", 8, {"attention_chunk_size": 64}, "CCCFCCCF"),
        ("llama4_text", 2, {"attention_chunk_size": 64, "no_rope_layers": [0, 1]}, "FC"),
        ("llama4_text", 2, {"attention_chunk_size": None}, "FF"),
        ("smollm3", 4, {"sliding_window": 64, "use_sliding_window": True}, "FFFS"),
        ("smollm3", 4, {"sliding_window": 64, "use_sliding_window": False}, "FFFF"),
        ("qwen2", 2, {"sliding_window": 64, "use_sliding_window": False}, "FF"),
        (
            "qwen2",
            2,
            {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0},
            "SS",
        ),
        (
            "qwen2",
            2,
            {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 2},
            "FF",
        ),
        (
            "llama",
            2,
            {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]},
            "SF",
        ),
    ],
)
def test_windows_stand_where_the_model_type_puts_them(
    model_type: str, count: int, config: dict[str, Any], expected: str
) -> None:
    assert kinds(layers(model_type, count, **config)) == expected


def test_a_window_in_some_layers_only_is_refused_where_the_engine_refuses_it() -> None:
    with pytest.raises(UnsupportedModel, match="max_window_layers"):
        layers("qwen2", 4, sliding_window=64, use_sliding_window=True, max_window_layers=2)


@pytest.mark.parametrize("model_type", sorted(WINDOW_RULES))
def test_every_type_with_a_rule_for_windows_has_one_for_its_layers(model_type: str) -> None:
    listed = ["sliding_attention"] * 20
    found = layers(model_type, 20, head_dim=64, sliding_window=64, layer_types=listed)
    # The last 15 layers of one family use the caches of earlier ones.
    assert len(found) == (5 if model_type.startswith("gemma3n") else 20)


def test_one_model_type_sees_one_token_further_than_its_config_says() -> None:
    assert attention(layers("cohere2", 1, sliding_window=64))[0].window == 65
    assert attention(layers("gemma2", 1, sliding_window=64))[0].window == 64


def test_global_layers_may_have_other_heads_than_sliding_ones() -> None:
    found = layers(
        "gemma4_text",
        2,
        head_dim=64,
        global_head_dim=128,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=32,
        layer_types=["sliding_attention", "full_attention"],
    )
    # K = V shares weights, not the cache: V is stored beside K, as wide.
    assert found == (
        AttentionLayer(0, "sliding", 4, 64, 64, window=32),
        AttentionLayer(1, "full", 1, 128, 128),
    )


def test_fewer_global_heads_count_only_where_k_equals_v() -> None:
    found = layers(
        "gemma4_text", 1, num_global_key_value_heads=1, attention_k_eq_v=False, sliding_window=32
    )
    assert attention(found)[0].kv_heads == 4


def test_layers_that_share_an_earlier_cache_keep_none() -> None:
    found = layers("gemma3n_text", 10, num_kv_shared_layers=4, sliding_window=32, head_dim=64)
    assert [layer.index for layer in found] == [0, 1, 2, 3, 4, 5]


def test_one_kv_head_under_the_multi_query_flag() -> None:
    assert attention(layers("falcon", 1, multi_query=True))[0].kv_heads == 1
    grouped = layers("falcon", 1, multi_query=True, new_decoder_architecture=True, num_kv_heads=2)
    assert attention(grouped)[0].kv_heads == 2
    assert (
        attention(layers("gpt_bigcode", 1, multi_query=False, num_key_value_heads=8))[0].kv_heads
        == 8
    )


def test_a_model_class_that_ignores_the_kv_dtype_is_marked() -> None:
    assert attention(layers("falcon", 1, multi_query=True))[0].ignores_kv_dtype
    assert not attention(layers("gpt_bigcode", 1, multi_query=True))[0].ignores_kv_dtype


def test_kv_heads_in_a_section_of_their_own() -> None:
    assert attention(layers("dbrx", 1, attn_config={"kv_n_heads": 2}))[0].kv_heads == 2


def test_blocks_without_attention_keep_no_cache() -> None:
    blocks = [
        {"attention": {"no_op": False, "n_heads_in_group": 4}},
        {"attention": {"no_op": True}},
        {"attention": {"no_op": False, "n_heads_in_group": 8}},
    ]
    found = attention(layers("nemotron-nas", 3, block_configs=blocks))
    # 8 query heads in groups of 4 and of 8.
    assert [(layer.index, layer.kv_heads) for layer in found] == [(0, 2), (2, 1)]


def test_sliding_layers_with_heads_of_their_own() -> None:
    found = layers(
        "mimo_v2_flash",
        2,
        hybrid_layer_pattern=[0, 1],
        head_dim=192,
        v_head_dim=128,
        swa_head_dim=192,
        swa_v_head_dim=128,
        swa_num_key_value_heads=8,
        sliding_window_size=128,
    )
    assert found == (
        AttentionLayer(0, "full", 4, 192, 128),
        AttentionLayer(1, "sliding", 8, 192, 128, window=128),
    )


def test_layers_of_one_listed_type_take_other_heads() -> None:
    found = layers(
        "step3p5",
        2,
        num_attention_groups=4,
        sliding_window=32,
        layer_types=["full_attention", "sliding_attention"],
        attention_other_setting={
            "attention_type": "sliding_attention",
            "num_attention_heads": 16,
            "num_attention_groups": 2,
            "head_dim": 32,
        },
    )
    assert found == (
        AttentionLayer(0, "full", 4, 64, 64),
        AttentionLayer(1, "sliding", 2, 32, 32, window=32),
    )


def test_draft_layers_of_a_shape_of_their_own_are_not_guessed() -> None:
    config = {**BASE, "model_type": "step3p5", "num_hidden_layers": 1}
    assert draft_layers(Fields({**config, "num_nextn_predict_layers": 3}, "small")) == ()


def test_latent_attention_keeps_one_vector_for_all_heads() -> None:
    found = layers("deepseek_v3", 1, kv_lora_rank=512, qk_rope_head_dim=64)
    assert found == (AttentionLayer(0, "mla", 1, 576, 0),)


def test_sparse_latent_attention_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="index_topk"):
        layers("deepseek_v32", 1, kv_lora_rank=512, qk_rope_head_dim=64, index_topk=2048)


@pytest.mark.parametrize("model_type", ["deepseek_v4", "minimax_m3", "whisper"])
def test_known_but_unmodelled_types_are_refused(model_type: str) -> None:
    with pytest.raises(UnsupportedModel, match=model_type):
        layers(model_type, 1)


def test_a_layer_type_without_a_cache_rule_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="lightning_attention"):
        layers("llama", 1, layer_types=["lightning_attention"])


def test_a_list_of_layer_types_that_is_too_short_is_an_error() -> None:
    with pytest.raises(ModelConfigError, match="1 entries for 2 layers"):
        layers("llama", 2, layer_types=["full_attention"])


DELTA = {
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}


def test_every_fourth_layer_attends_in_a_delta_rule_hybrid() -> None:
    found = layers("qwen3_next", 8, **DELTA)
    assert kinds(found) == "RRRFRRRF"
    # Q and K of 2 × 16 each, V of 4 × 8: 96 channels; a 16 × 8 matrix for each of 4 heads.
    assert found[0] == RecurrentLayer(0, (ConvState(96, 4), MatrixState(4, 128)))


def test_the_state_dtype_of_the_config_is_kept() -> None:
    found = layers("qwen3_5_text", 1, mamba_ssm_dtype="float32", **DELTA)
    assert isinstance(found[0], RecurrentLayer)
    assert found[0].states[1] == MatrixState(4, 128, "float32")


def test_letters_spell_scan_attention_and_blocks_without_a_cache() -> None:
    scan = {
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "n_groups": 2,
        "ssm_state_size": 16,
        "conv_kernel": 4,
    }
    found = layers("nemotron_h", 6, hybrid_override_pattern="M-M*E*", **scan)
    assert [layer.index for layer in found] == [0, 2, 3, 5]
    assert kinds(found) == "RRFF"
    # 4 × 8 channels, B and C of 16 for each of 2 groups; float32 where the config is silent.
    assert found[0] == RecurrentLayer(
        0,
        (ConvState(32, 4, groups=2, grouped_width=32), MatrixState(4, 128, "float32")),
        checkpoints=1,
    )


def test_a_pattern_of_unknown_letters_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="M, \\*, - and E"):
        layers("nemotron_h", 2, hybrid_override_pattern="MX")


def test_attention_at_one_offset_of_each_period() -> None:
    found = layers(
        "jamba",
        8,
        attn_layer_period=4,
        attn_layer_offset=2,
        mamba_expand=2,
        mamba_d_state=16,
        mamba_d_conv=4,
    )
    assert kinds(found) == "RRFRRRFR"
    # Twice the hidden size; the convolution of this kind does not grow with speculation.
    assert found[0] == RecurrentLayer(
        0, (ConvState(1024, 4, grows_with_speculation=False), MatrixState(1024, 16))
    )


def test_attention_and_scan_side_by_side_in_every_layer() -> None:
    found = layers(
        "falcon_h1",
        2,
        mamba_d_ssm=64,
        mamba_n_groups=1,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_state=8,
        mamba_d_conv=4,
    )
    assert [(layer.index, type(layer).__name__) for layer in found] == [
        (0, "RecurrentLayer"),
        (0, "AttentionLayer"),
        (1, "RecurrentLayer"),
        (1, "AttentionLayer"),
    ]


def test_convolutions_with_attention_where_it_is_listed() -> None:
    found = layers("lfm2", 3, conv_L_cache=3, full_attn_idxs=[1])
    assert kinds(found) == "RFR"
    assert found[0] == RecurrentLayer(0, (ConvState(512, 3, grows_with_speculation=False),))


def test_recurrent_layers_counted_from_one_beside_latent_attention() -> None:
    found = layers(
        "kimi_linear",
        3,
        kv_lora_rank=32,
        qk_rope_head_dim=8,
        linear_attn_config={
            "kda_layers": [1, 2],
            "full_attn_layers": [3],
            "num_heads": 4,
            "head_dim": 16,
            "short_conv_kernel_size": 4,
        },
    )
    assert kinds(found) == "RRM"
    assert found[0] == RecurrentLayer(0, (ConvState(192, 4), MatrixState(4, 256, "float32")))


def test_a_prediction_module_adds_its_own_layers_behind_the_last() -> None:
    config = {**BASE, "model_type": "qwen3_next", "num_hidden_layers": 4, **DELTA}
    drafts = draft_layers(Fields({**config, "num_nextn_predict_layers": 2}, "small"))
    assert drafts == (AttentionLayer(4, "full", 4, 64, 64), AttentionLayer(5, "full", 4, 64, 64))
    assert draft_layers(Fields(config, "small")) == ()
