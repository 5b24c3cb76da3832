"""A Llama so small that it is made in a moment: random weights, float32, no download."""

from __future__ import annotations

from pathlib import Path

#: 2 (K and V) × 2 layers × 2 KV heads × 16 dimensions × 4 bytes.
FP32_BYTES_PER_TOKEN = 512


def write(folder: Path) -> Path:
    """Save the model as a Hugging Face folder and return it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.5,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
