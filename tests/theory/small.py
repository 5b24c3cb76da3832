"""Models of a few layers whose KV layout can be counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.specs.model import ModelSpec, model_spec, shipped_config

#: 4 KV heads of 64: K and V of one token and layer are 4 × 128 × 2 = 1,024 bytes in 16 bits.
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
}
#: Three recurrent layers to one of attention. State: convolution of 2·2·16 + 4·8 = 96 channels,
#: 3 rows, and 4 matrices of 128, all in 16 bits: 2 · (288 + 512) = 1,600 bytes.
HYBRID = {
    **LLAMA,
    "model_type": "qwen3_next",
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
LATENT = {**LLAMA, "model_type": "deepseek_v3", "kv_lora_rank": 96, "qk_rope_head_dim": 32}


def small(base: dict[str, Any] = LLAMA, **changes: Any) -> ModelSpec:
    return model_spec({**base, **changes}, name="small")


def shipped(name: str) -> ModelSpec:
    config = shipped_config(name)
    assert config is not None
    return model_spec(config, name=name)


def with_kv_heads(model: ModelSpec, heads: int) -> ModelSpec:
    layers = tuple(replace(layer, kv_heads=heads) for layer in model.attention_layers)
    return replace(model, layers=layers)
