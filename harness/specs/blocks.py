"""Which feed-forward block each layer has, and how many matrices it is made of.

Method: the dozen spellings of "this layer is a mixture of experts" are read once, here, so that
weights and FLOPs are counted from plain numbers. Not covered: experts whose widths differ.
Source: the model classes of vLLM 0.32.0.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import ModelConfigError
from harness.specs.fields import Fields

_INTERMEDIATE = (
    "intermediate_size",
    "ffn_hidden_size",
    "n_inner",
    "ffn_dim",
    "block_ff_dim",
)
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_EXPERTS_USED = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "moe_top_k",
    "moe_topk",
)
_EXPERT_WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
#: Two matrices per block (up, down) instead of three (gate, up, down).
_UNGATED = frozenset(
    {
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gptj",
        "mpt",
        "nemotron",
        "nemotron_h",
        "opt",
        "bloom",
        "phi",
        "starcoder2",
    }
)


@dataclass(frozen=True, slots=True)
class FeedForward:
    """One layer's feed-forward block: dense parts, and experts of which some are used per token."""

    dense_widths: tuple[int, ...]
    matrices: int
    experts: int = 0
    experts_used: int = 0
    expert_width: int = 0


def feed_forward(fields: Fields, index: int, kind: str) -> FeedForward | None:
    """The feed-forward block of layer ``index``; None where it has none.

    ``kind`` is the layer's letter where the config spells layers as letters (``-`` dense, ``E``
    experts), else empty.

    Raises:
        ModelConfigError: a width is missing.
    """
    matrices = 2 if fields.model_type in _UNGATED else 3
    if kind and kind not in "-E":
        return None
    sparse = kind == "E" or (not kind and is_sparse(fields, index))
    experts = fields.optional_integer(*_EXPERTS) or 0
    if not (sparse and experts):
        return FeedForward((_dense_width(fields),), matrices)
    beside = _beside_experts(fields)
    used = fields.optional_integer(*_EXPERTS_USED) or 1
    return FeedForward(
        dense_widths=beside,
        matrices=matrices,
        experts=experts,
        experts_used=fields.whole("num_experts_per_tok", used, 1, experts),
        expert_width=fields.integer(*_EXPERT_WIDTH),
    )


def is_sparse(fields: Fields, index: int) -> bool:
    """Whether layer ``index`` is a mixture of experts."""
    if not fields.optional_integer(*_EXPERTS):
        return False
    if index in fields.places("mlp_only_layers", fields.get("mlp_only_layers", ())):
        return False
    if index < (fields.optional_integer("first_k_dense_replace") or 0):
        return False
    period = fields.optional_integer("expert_layer_period", "interleave_moe_layer_step")
    if period:
        offset = fields.optional_integer("expert_layer_offset")
        return index % period == (period - 1 if offset is None else offset)
    step = fields.optional_integer("decoder_sparse_step", "moe_layer_freq") or 1
    return (index + 1) % step == 0 if "decoder_sparse_step" in fields.config else index % step == 0


def layer_letters(fields: Fields) -> str:
    """The layer pattern where each layer is either a mixer or a feed-forward block."""
    pattern = fields.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern
    listed = [str(kind) for kind in fields.listed("layers_block_type") or ()]
    if not {"mlp", "moe"} & set(listed):
        return ""
    return "".join(_LETTERS.get(kind, "?") for kind in listed)


_LETTERS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}


def _dense_width(fields: Fields) -> int:
    wide = fields.optional_integer("intermediate_size_mlp")
    if wide:
        return wide
    if (stated := fields.optional_integer(*_INTERMEDIATE)) is not None:
        return _adjusted(fields, stated)
    if fields.model_type in _UNGATED:
        return 4 * fields.hidden_size
    raise ModelConfigError(
        "no intermediate_size in the config",
        where=fields.name,
        next_move="weights and FLOPs need it; KV figures do not",
    )


def _adjusted(fields: Fields, width: int) -> int:
    """Some configs state the width before it is cut to two thirds and rounded up."""
    if not fields.flag("block_auto_adjust_ff_dim"):
        return width
    cut = int(2 * width / 3 * fields.number("block_ffn_dim_multiplier", 1.0))
    multiple = fields.optional_integer("block_multiple_of") or 256
    return -(-cut // multiple) * multiple


def _beside_experts(fields: Fields) -> tuple[int, ...]:
    """Widths of what every token passes beside the experts it is routed to."""
    if fields.flag("enable_moe_block"):
        return (fields.integer("intermediate_size"),)
    if fields.model_type.startswith("llama4"):
        return (fields.integer("intermediate_size"),)
    shared = fields.optional_integer(
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    )
    if shared:
        return (shared,)
    count = fields.optional_integer("n_shared_experts", "num_shared_experts") or 0
    return (count * fields.integer(*_EXPERT_WIDTH),) if count else ()
