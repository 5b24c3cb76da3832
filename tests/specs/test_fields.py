from __future__ import annotations

import pytest

from harness.errors import ModelConfigError
from harness.overlay import overlay
from harness.specs.fields import Fields


def fields(**config: object) -> Fields:
    return Fields(config, "a model")


def test_old_names_of_layers_heads_and_width_are_read() -> None:
    old = fields(n_layer=12, n_head=12, n_embd=768)
    assert (old.layer_count, old.heads, old.hidden_size) == (12, 12, 768)
    # No KV heads stated: as many as query heads; 768 / 12 = 64.
    assert (old.kv_heads, old.head_dim) == (12, 64)


@pytest.mark.parametrize(
    "name", ["n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num"]
)
def test_kv_heads_go_by_many_names(name: str) -> None:
    assert fields(num_attention_heads=32, **{name: 2}).kv_heads == 2


def test_a_stated_head_dim_wins_over_hidden_size_by_heads() -> None:
    assert fields(hidden_size=2048, num_attention_heads=32, head_dim=128).head_dim == 128


def test_a_head_dim_of_null_or_zero_counts_as_missing() -> None:
    for empty in (None, 0):
        assert fields(hidden_size=4096, num_attention_heads=32, head_dim=empty).head_dim == 128


def test_a_width_that_heads_do_not_divide_asks_for_head_dim() -> None:
    with pytest.raises(ModelConfigError, match="no multiple"):
        _ = fields(hidden_size=100, num_attention_heads=3).head_dim


def test_the_language_model_is_found_inside_a_multimodal_config() -> None:
    outer = {
        "architectures": ["SomeForConditionalGeneration"],
        "dtype": "bfloat16",
        "text_config": {"model_type": "llama", "num_hidden_layers": 4, "dtype": None},
    }
    inner = Fields(outer, "a model")
    assert inner.layer_count == 4
    assert inner.architecture == "SomeForConditionalGeneration"
    assert inner.dtype == "bfloat16"


def test_a_float32_checkpoint_is_served_in_bfloat16() -> None:
    assert fields(torch_dtype="float32").dtype == "bfloat16"
    assert fields(torch_dtype="torch.float16").dtype == "float16"


def test_the_shortest_of_the_stated_lengths_is_the_context() -> None:
    assert fields(max_position_embeddings=8192, seq_length=2048).max_model_len == 2048


def test_linear_rope_scaling_stretches_the_context_and_yarn_does_not() -> None:
    linear = fields(max_position_embeddings=4096, rope_scaling={"type": "linear", "factor": 2.0})
    yarn = fields(
        max_position_embeddings=131072, rope_scaling={"rope_type": "yarn", "factor": 32.0}
    )
    assert (linear.max_model_len, yarn.max_model_len) == (8192, 131072)


def test_longrope_starts_at_the_original_length() -> None:
    long = fields(
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        rope_scaling={"type": "longrope"},
    )
    assert long.max_model_len == 4096


def test_a_config_without_any_length_gets_the_engines_fallback() -> None:
    assert fields(num_hidden_layers=1).max_model_len == 2048


def test_a_count_that_is_no_whole_number_is_an_error() -> None:
    with pytest.raises(ModelConfigError, match="num_hidden_layers is 'many'"):
        _ = fields(num_hidden_layers="many").layer_count


def test_a_config_that_is_no_object_is_an_error() -> None:
    with pytest.raises(ModelConfigError, match="JSON object"):
        Fields([], "a model")  # type: ignore[arg-type]


def test_overrides_replace_fields_and_merge_nested_objects() -> None:
    config = {"a": 1, "text_config": {"b": 2, "c": 3}}
    merged = overlay(config, {"a": 9, "text_config": {"c": 4}})
    assert merged == {"a": 9, "text_config": {"b": 2, "c": 4}}
    assert config["a"] == 1
