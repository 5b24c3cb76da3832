"""The fixed state that a recurrent layer keeps, for the families of them.

Method: four shapes cover what is served. A *selective scan* of the first kind (one state row per
channel), of the second kind (one matrix per head, B and C shared by groups), the *delta rule*
(K × V matrix per head, with a convolution over Q, K and V), and a *short convolution* alone.
Source: vLLM 0.32.0, ``model_executor/layers/mamba/mamba_utils.py`` and each model class'
``get_mamba_state_shape_from_config`` (which names the fields).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.errors import ModelConfigError
from harness.specs.fields import Fields
from harness.specs.layers import ConvState, MatrixState, RecurrentLayer

#: A rule gives a layer without its place in the model (index 0).
StateRule = Callable[[Fields], RecurrentLayer]


def _scan(width: int, state: int, kernel: int) -> RecurrentLayer:
    conv = ConvState(width, kernel, grows_with_speculation=False)
    return RecurrentLayer(0, (conv, MatrixState(width, state)))


def _grouped_scan(
    width: int, groups: int, heads: int, head_dim: int, state: int, kernel: int, dtype: str | None
) -> RecurrentLayer:
    conv = ConvState(width, kernel, groups=groups, grouped_width=2 * state)
    return RecurrentLayer(0, (conv, MatrixState(heads, head_dim * state, dtype)), checkpoints=1)


def delta_rule(fields: Fields) -> RecurrentLayer:
    """Gated delta net: ``linear_*`` fields; the matrix in ``mamba_ssm_dtype`` if it is named."""
    key_heads, key_dim = (
        fields.integer("linear_num_key_heads"),
        fields.integer("linear_key_head_dim"),
    )
    value_heads = fields.integer("linear_num_value_heads")
    value_dim = fields.integer("linear_value_head_dim")
    width = 2 * key_heads * key_dim + value_heads * value_dim
    dtype = fields.get("mamba_ssm_dtype")
    matrix = MatrixState(value_heads, value_dim * key_dim, str(dtype) if dtype else None)
    return RecurrentLayer(0, (ConvState(width, fields.integer("linear_conv_kernel_dim")), matrix))


def kimi_delta(fields: Fields) -> RecurrentLayer:
    """Kimi delta attention: ``linear_attn_config``; its matrix is float32 unless told otherwise."""
    section = fields.section("linear_attn_config")
    if not section:
        raise ModelConfigError("no linear_attn_config in the config", where=fields.name)
    heads, dim = _number(fields, section, "num_heads"), _number(fields, section, "head_dim")
    kernel = _number(fields, section, "short_conv_kernel_size")
    matrix = MatrixState(heads, dim * dim, "float32")
    return RecurrentLayer(0, (ConvState(3 * heads * dim, kernel), matrix))


def _number(fields: Fields, section: Mapping[str, Any], key: str) -> int:
    return fields.whole(f"linear_attn_config.{key}", section.get(key), 1)


def _expanded(fields: Fields, key: str) -> int:
    """Channels of a scan: the hidden size times a factor, 2 where the config states none."""
    return int(fields.number(key, 2) * fields.hidden_size)


def nemotron_scan(fields: Fields) -> RecurrentLayer:
    """Second kind; the matrix in ``mamba_ssm_cache_dtype``, float32 where it is not named."""
    heads, dim = fields.integer("mamba_num_heads"), fields.integer("mamba_head_dim")
    return _grouped_scan(
        heads * dim,
        fields.integer("n_groups", "mamba_n_groups"),
        heads,
        dim,
        fields.integer("ssm_state_size", "mamba_d_state"),
        fields.integer("conv_kernel", "mamba_d_conv"),
        str(fields.get("mamba_ssm_cache_dtype", "float32")),
    )


def expanded_grouped_scan(fields: Fields) -> RecurrentLayer:
    """Second kind under the names of Bamba, Granite 4, Falcon H1 and Zamba 2."""
    stated = fields.optional_integer("mamba_d_ssm")
    width = stated or _expanded(fields, "mamba_expand")
    return _grouped_scan(
        width,
        fields.integer("mamba_n_groups", "mamba_ngroups"),
        fields.integer("mamba_n_heads", "n_mamba_heads"),
        fields.integer("mamba_d_head", "mamba_headdim"),
        fields.integer("mamba_d_state"),
        fields.integer("mamba_d_conv"),
        None,
    )


def plain_grouped_scan(fields: Fields) -> RecurrentLayer:
    """Second kind under the names of Mamba 2."""
    return _grouped_scan(
        _expanded(fields, "expand"),
        fields.integer("n_groups"),
        fields.integer("num_heads"),
        fields.integer("head_dim"),
        fields.integer("state_size"),
        fields.integer("conv_kernel"),
        None,
    )


def jamba_scan(fields: Fields) -> RecurrentLayer:
    """First kind under the names of Jamba."""
    return _scan(
        _expanded(fields, "mamba_expand"),
        fields.integer("mamba_d_state"),
        fields.integer("mamba_d_conv"),
    )


def plain_scan(fields: Fields) -> RecurrentLayer:
    """First kind under the names of Mamba and Falcon Mamba."""
    return _scan(
        fields.integer("intermediate_size"),
        fields.integer("state_size"),
        fields.integer("conv_kernel"),
    )


def short_convolution(fields: Fields) -> RecurrentLayer:
    """A convolution and nothing else (LFM 2)."""
    width = fields.optional_integer("conv_dim") or fields.hidden_size
    kernel = fields.integer("conv_L_cache")
    return RecurrentLayer(0, (ConvState(width, kernel, grows_with_speculation=False),))
