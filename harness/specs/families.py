"""From a config to the layers that keep a cache, family by family.

Method: one short rule per way of laying out layers, chosen by ``model_type``. A type without a
rule is read as a plain decoder only if it is known to be one, or if no field of the config hints
at another layout; every hint that could not be placed is named in the refusal.
Source: the model classes and config convertors of vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from harness.errors import ModelConfigError, UnsupportedModel
from harness.specs import recurrent
from harness.specs.fields import Fields
from harness.specs.layers import AttentionLayer, ConvState, Layer
from harness.specs.windows import WINDOW_RULES, listed_layer_types, sights, window_of

LayerRule = Callable[[Fields], tuple[Layer, ...]]


def cached_layers(fields: Fields) -> tuple[Layer, ...]:
    """The layers of the target model that keep a cache, in order.

    Raises:
        ModelConfigError: a field that the rule needs is missing.
        UnsupportedModel: no rule fits; the message names the fields that could not be placed.
    """
    if fields.model_type in _REFUSED:
        raise UnsupportedModel(
            f"model_type {fields.model_type!r} is not modelled: {_REFUSED[fields.model_type]}",
            where=fields.name,
        )
    rule = _RULES.get(fields.model_type)
    if rule is None:
        _refuse_hints(fields)
        rule = _plain
    layers = rule(fields)
    if not layers:
        raise UnsupportedModel("no layer of this config keeps a cache", where=fields.name)
    for layer in dict.fromkeys(replace(layer, index=0) for layer in layers):
        _check_sizes(layer, fields)
    return layers


def _check_sizes(layer: Layer, fields: Fields) -> None:
    """Refuse a layer of no size, whichever field of whichever family led to it."""
    if isinstance(layer, AttentionLayer):
        fields.whole("the number of KV heads", layer.kv_heads, 1)
        fields.whole("the head size", layer.head_dim, 1)
        fields.whole("the head size of V", layer.head_dim_v, 0 if layer.kind == "mla" else 1)
        return
    for state in layer.states:
        if isinstance(state, ConvState):
            fields.whole("the width of a convolution", state.width, 1)
            fields.whole("the kernel of a convolution", state.kernel, 1)
        else:
            fields.whole("the heads of a recurrent state", state.heads, 1)
            fields.whole("the size of a recurrent state", state.elements_per_head, 1)


def draft_layers(fields: Fields) -> tuple[Layer, ...]:
    """The layers that the model's own multi-token-prediction module adds when it is used."""
    count = fields.further_layers("mtp_num_hidden_layers", "num_nextn_predict_layers")
    if count == 0 or fields.model_type in _OWN_DRAFT_SHAPES:
        return ()
    start = fields.layer_count
    template = _draft_template(fields)
    return tuple(replace(template, index=start + i) for i in range(count))


def _draft_template(fields: Fields) -> AttentionLayer:
    if _is_mla(fields):
        return _latent_layer(fields, fields.layer_count)
    return _head_layer(fields, fields.layer_count)


# --- plain attention -----------------------------------------------------------------------------


def _head_layer(fields: Fields, index: int, **changes: Any) -> AttentionLayer:
    layer = AttentionLayer(index, "full", fields.kv_heads, fields.head_dim, fields.head_dim)
    return replace(layer, **changes) if changes else layer


def _plain(fields: Fields) -> tuple[Layer, ...]:
    """Every layer keeps K and V of the same heads; windows as the model type has them."""
    template = _head_layer(fields, 0)
    return tuple(
        replace(template, index=i, kind=sight, window=window_of(fields, sight))
        for i, sight in enumerate(sights(fields))
    )


def _multi_query(*, ignores_kv_dtype: bool) -> LayerRule:
    """One KV head under the flag ``multi_query``, else what the config says."""

    def rule(fields: Fields) -> tuple[Layer, ...]:
        grouped = fields.flag("new_decoder_architecture")
        one = fields.get("multi_query", True) and not grouped
        layer = _head_layer(
            fields,
            0,
            kv_heads=1 if one else fields.kv_heads,
            ignores_kv_dtype=ignores_kv_dtype,
        )
        return tuple(replace(layer, index=i) for i in range(fields.layer_count))

    return rule


def _attention_section(fields: Fields) -> tuple[Layer, ...]:
    """KV heads stand in an ``attn_config`` section (DBRX, MPT)."""
    section = fields.section("attn_config")
    stated = section.get("kv_n_heads") or fields.heads
    heads = fields.grouped("attn_config.kv_n_heads", stated)
    return tuple(_head_layer(fields, i, kv_heads=heads) for i in range(fields.layer_count))


def _per_block(fields: Fields) -> tuple[Layer, ...]:
    """``block_configs`` list each layer's attention; some layers have none (Nemotron NAS)."""
    layers: list[Layer] = []
    for i, block in enumerate(fields.listed("block_configs") or ()):
        attention = block.get("attention", {})
        if attention.get("no_op") or attention.get("replace_with_linear"):
            continue
        group = attention.get("n_heads_in_group")
        if not isinstance(group, int) or group < 1 or fields.heads % group:
            raise UnsupportedModel(
                f"block_configs[{i}].attention has no n_heads_in_group that divides the "
                f"{fields.heads} query heads",
                where=fields.name,
            )
        layers.append(_head_layer(fields, i, kv_heads=fields.heads // group))
    return tuple(layers)


def _shared_tail(default: int) -> LayerRule:
    """The last ``num_kv_shared_layers`` reuse the cache of earlier ones and keep none."""

    def rule(fields: Fields) -> tuple[Layer, ...]:
        shared = fields.optional_integer("num_kv_shared_layers")
        own = fields.layer_count - (default if shared is None else shared)
        return tuple(layer for layer in _plain(fields) if layer.index < own)

    return rule


def _wide_global(fields: Fields) -> tuple[Layer, ...]:
    """Global layers have other heads than sliding ones; with K = V they may have fewer.

    The engine stores K and V apart even where the weights are shared.
    """
    dim = fields.optional_integer("global_head_dim") or 512
    heads = fields.optional_integer("num_global_key_value_heads")
    kv_heads = fields.kv_heads
    if heads and fields.flag("attention_k_eq_v"):
        kv_heads = fields.grouped("num_global_key_value_heads", heads)

    def widen(layer: Layer) -> Layer:
        if isinstance(layer, AttentionLayer) and layer.kind == "full":
            return replace(layer, kv_heads=kv_heads, head_dim=dim, head_dim_v=dim)
        return layer

    return tuple(widen(layer) for layer in _shared_tail(0)(fields))


def _two_shapes(fields: Fields) -> tuple[Layer, ...]:
    """``hybrid_layer_pattern`` marks sliding layers, which have heads of their own (MiMo V2)."""
    pattern = fields.get("hybrid_layer_pattern")
    if not isinstance(pattern, list) or len(pattern) < fields.layer_count:
        raise ModelConfigError("no hybrid_layer_pattern of full length", where=fields.name)
    full = _head_layer(
        fields, 0, head_dim_v=fields.optional_integer("v_head_dim") or fields.head_dim
    )
    queries = fields.optional_integer("swa_num_attention_heads")
    heads = fields.integer("swa_num_key_value_heads")
    dim = fields.integer("swa_head_dim")
    sliding = AttentionLayer(
        0,
        "sliding",
        fields.grouped("swa_num_key_value_heads", heads, queries),
        dim,
        fields.optional_integer("swa_v_head_dim") or dim,
        window=fields.integer("sliding_window_size", "sliding_window"),
    )
    return tuple(
        replace(sliding if pattern[i] else full, index=i) for i in range(fields.layer_count)
    )


def _other_setting(fields: Fields) -> tuple[Layer, ...]:
    """Layers of one listed type take heads from ``attention_other_setting`` (Step 3.5)."""
    other = fields.section("attention_other_setting")
    queries = other.get("num_attention_heads")
    queries = queries if isinstance(queries, int) else None
    listed = listed_layer_types(fields) or []

    def adapt(layer: Layer) -> Layer:
        named = listed[layer.index] if listed else ""
        if not (
            isinstance(layer, AttentionLayer) and named and named == other.get("attention_type")
        ):
            return layer
        dim = other.get("head_dim") or layer.head_dim
        heads = other.get("num_attention_groups")
        heads = fields.grouped("num_attention_groups", heads, queries) if heads else layer.kv_heads
        return replace(layer, kv_heads=heads, head_dim=dim, head_dim_v=dim)

    return tuple(adapt(layer) for layer in _plain(fields))


# --- latent attention ----------------------------------------------------------------------------


def _is_mla(fields: Fields) -> bool:
    return fields.model_type in _LATENT_TYPES and bool(fields.get("kv_lora_rank"))


def _latent_layer(fields: Fields, index: int) -> AttentionLayer:
    latent = fields.integer("kv_lora_rank") + (fields.optional_integer("qk_rope_head_dim") or 0)
    return AttentionLayer(index, "mla", 1, latent, 0)


def _latent(fields: Fields) -> tuple[Layer, ...]:
    """One latent vector and one rotary key per token, shared by all heads."""
    if not _is_mla(fields):
        return _plain(fields)
    if fields.optional_integer("index_topk"):
        raise UnsupportedModel(
            "index_topk: the page alignment of sparse latent attention depends on the GPU's "
            "kernel and is not modelled",
            where=fields.name,
        )
    return tuple(_latent_layer(fields, i) for i in range(fields.layer_count))


def _padded_latent(fields: Fields) -> tuple[Layer, ...]:
    """Latent weights, yet K and V are stored per head, as wide as a query (MiniCPM 3)."""
    dim = fields.integer("qk_nope_head_dim") + fields.integer("qk_rope_head_dim")
    layer = AttentionLayer(0, "full", fields.heads, dim, dim)
    return tuple(replace(layer, index=i) for i in range(fields.layer_count))


def _two_latent_per_layer(fields: Fields) -> tuple[Layer, ...]:
    """Each decoder layer holds two attention sublayers (LongCat Flash)."""
    count = fields.further_layers("num_layers")
    return tuple(_latent_layer(fields, i) for i in range(count) for _ in range(2))


# --- recurrent hybrids ---------------------------------------------------------------------------


def _mixed(kinds: Iterable[str], fields: Fields, states: recurrent.StateRule) -> tuple[Layer, ...]:
    """Layers by one-letter kind: A attention, R recurrent, B both, anything else no cache."""
    layers: list[Layer] = []
    for i, kind in enumerate(kinds):
        if kind in "RB":
            layers.append(replace(states(fields), index=i))
        if kind in "AB":
            layers.append(_attention_beside(fields, i))
    return tuple(layers)


def _attention_beside(fields: Fields, index: int) -> AttentionLayer:
    return _latent_layer(fields, index) if _is_mla(fields) else _head_layer(fields, index)


_LETTERS = {
    "full_attention": "A",
    "attention": "A",
    "linear_attention": "R",
    "mamba": "R",
    "mamba2": "R",
    "recurrent": "R",
    "conv": "R",
    "short_conv": "R",
    "hybrid": "B",
    "mlp": "-",
    "moe": "-",
}


def _letters(fields: Fields, given: Iterable[object]) -> str:
    listed = [str(kind) for kind in given]
    unknown = sorted({kind for kind in listed if kind not in _LETTERS})
    if unknown:
        raise UnsupportedModel(
            f"layer kinds {', '.join(map(repr, unknown))} have no modelled cache",
            where=fields.name,
            legal=_LETTERS,
        )
    return "".join(_LETTERS[kind] for kind in listed)


def _listed_or_every(states: recurrent.StateRule, default_interval: int) -> LayerRule:
    """``layer_types``, or attention in every n-th layer (``full_attention_interval``)."""

    def rule(fields: Fields) -> tuple[Layer, ...]:
        listed = listed_layer_types(fields)
        if listed is not None:
            return _mixed(_letters(fields, listed), fields, states)
        interval = fields.optional_integer("full_attention_interval") or default_interval
        kinds = ("A" if (i + 1) % interval == 0 else "R" for i in range(fields.layer_count))
        return _mixed(kinds, fields, states)

    return rule


def _by_period(fields: Fields) -> tuple[Layer, ...]:
    """Attention at one offset of each period, a selective scan elsewhere (Jamba)."""
    if (listed := fields.listed("layers_block_type")) is not None:
        return _mixed(_letters(fields, listed), fields, recurrent.jamba_scan)
    period = fields.optional_integer("attn_layer_period") or 8
    stated = fields.optional_integer("attn_layer_offset")
    offset = 4 if stated is None else stated
    kinds = ("A" if i % period == offset else "R" for i in range(fields.layer_count))
    return _mixed(kinds, fields, recurrent.jamba_scan)


def _by_letters(fields: Fields) -> tuple[Layer, ...]:
    """``hybrid_override_pattern``: M scan, * attention, - and E layers without a cache."""
    pattern = fields.get("hybrid_override_pattern")
    if pattern is None and (listed := fields.listed("layers_block_type")) is not None:
        return _mixed(_letters(fields, listed), fields, recurrent.nemotron_scan)
    if not isinstance(pattern, str) or not set(pattern) <= set("M*-E"):
        raise UnsupportedModel(
            f"hybrid_override_pattern {pattern!r} is not made of M, *, - and E", where=fields.name
        )
    kinds = pattern.translate(str.maketrans("M*E", "RA-"))
    return _mixed(kinds, fields, recurrent.nemotron_scan)


def _listed_blocks(fields: Fields) -> tuple[Layer, ...]:
    """``layer_types`` or ``layers_block_type``, or attention at ``attn_layer_indices``."""
    listed = fields.listed("layer_types") or fields.listed("layers_block_type")
    if listed is None:
        key = "attn_layer_indices"
        attention = fields.places(key, fields.get(key, ()))
        listed = ["attention" if i in attention else "mamba" for i in range(fields.layer_count)]
    return _mixed(_letters(fields, listed), fields, recurrent.expanded_grouped_scan)


def _both_everywhere(fields: Fields) -> tuple[Layer, ...]:
    """Attention and scan side by side in every layer (Falcon H1)."""
    return _mixed("B" * fields.layer_count, fields, recurrent.expanded_grouped_scan)


def _short_convolutions(fields: Fields) -> tuple[Layer, ...]:
    """Convolutions, with attention where the config lists it (LFM 2)."""
    listed = listed_layer_types(fields)
    if listed is None:
        attention = fields.get("full_attn_idxs")
        if attention is None:
            raise ModelConfigError("neither layer_types nor full_attn_idxs", where=fields.name)
        kept = fields.places("full_attn_idxs", attention)
        listed = ["full_attention" if i in kept else "conv" for i in range(fields.layer_count)]
    return _mixed(_letters(fields, listed), fields, recurrent.short_convolution)


def _kimi_linear(fields: Fields) -> tuple[Layer, ...]:
    """``linear_attn_config.kda_layers`` counts from one; the other layers are latent attention."""
    listed = fields.section("linear_attn_config").get("kda_layers", ())
    recurrent_layers = fields.places("linear_attn_config.kda_layers", listed)
    kinds = ("R" if i + 1 in recurrent_layers else "A" for i in range(fields.layer_count))
    return _mixed(kinds, fields, recurrent.kimi_delta)


def _only_recurrent(states: recurrent.StateRule) -> LayerRule:
    def rule(fields: Fields) -> tuple[Layer, ...]:
        return _mixed("R" * fields.layer_count, fields, states)

    return rule


# --- the tables ----------------------------------------------------------------------------------

_LATENT_TYPES = frozenset(
    {
        "axk1",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_mtp",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "kimi_k2",
        "kimi_linear",
        "longcat_flash",
        "pangu_ultra_moe",
    }
)

#: Plain decoders in which every layer sees the same; those with a rule of their own for windows
#: stand in ``windows``.
_PLAIN_TYPES = (
    "afmoe",
    "apertus",
    "arcee",
    "baichuan",
    "bailing_moe",
    "bloom",
    "cohere",
    "deepseek",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone",
    "exaone_moe",
    "gemma",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_neox",
    "gptj",
    "granite",
    "granitemoe",
    "granitemoeshared",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "internlm",
    "internlm2",
    "internlm3",
    "llama",
    "mimo",
    "minicpm",
    "minimax_m2",
    "ministral",
    "ministral3",
    "mistral",
    "mixtral",
    "nemotron",
    "olmo",
    "olmo2",
    "olmoe",
    "opt",
    "orion",
    "persimmon",
    "phi",
    "phi3",
    "phi4mm",
    "qwen",
    "seed_oss",
    "solar",
    "stablelm",
    "starcoder2",
    "telechat2",
    "chatglm",
)

_RULES: dict[str, LayerRule] = {
    **dict.fromkeys(WINDOW_RULES, _plain),
    **dict.fromkeys(_PLAIN_TYPES, _plain),
    **dict.fromkeys(_LATENT_TYPES, _latent),
    # These model classes never tell their attention layers about the KV dtype.
    "falcon": _multi_query(ignores_kv_dtype=True),
    "RefinedWeb": _multi_query(ignores_kv_dtype=True),
    "RefinedWebModel": _multi_query(ignores_kv_dtype=True),
    "gpt_bigcode": _multi_query(ignores_kv_dtype=False),
    "dbrx": _attention_section,
    "mpt": _attention_section,
    "nemotron-nas": _per_block,
    "gemma3n": _shared_tail(15),
    "gemma3n_text": _shared_tail(15),
    "gemma4": _wide_global,
    "gemma4_text": _wide_global,
    "gemma4_unified": _wide_global,
    "gemma4_unified_text": _wide_global,
    "mimo_v2_flash": _two_shapes,
    "mimo_v2": _two_shapes,
    "step3p5": _other_setting,
    "minicpm3": _padded_latent,
    "longcat_flash": _two_latent_per_layer,
    "qwen3_next": _listed_or_every(recurrent.delta_rule, 4),
    "qwen3_5": _listed_or_every(recurrent.delta_rule, 4),
    "qwen3_5_text": _listed_or_every(recurrent.delta_rule, 4),
    "qwen3_5_moe": _listed_or_every(recurrent.delta_rule, 4),
    "qwen3_5_moe_text": _listed_or_every(recurrent.delta_rule, 4),
    "olmo_hybrid": _listed_or_every(recurrent.delta_rule, 4),
    "kimi_linear": _kimi_linear,
    "jamba": _by_period,
    "nemotron_h": _by_letters,
    "bamba": _listed_blocks,
    "granitemoehybrid": _listed_blocks,
    "falcon_h1": _both_everywhere,
    "lfm2": _short_convolutions,
    "lfm2_moe": _short_convolutions,
    "mamba": _only_recurrent(recurrent.plain_scan),
    "falcon_mamba": _only_recurrent(recurrent.plain_scan),
    "mamba2": _only_recurrent(recurrent.plain_grouped_scan),
}

#: Model classes that know no attention at all; a hybrid class stays one without attention layers.
ATTENTION_FREE = frozenset({"mamba", "falcon_mamba", "mamba2"})

#: Types whose draft layers are shaped unlike the target's: not counted, and a note says so.
_OWN_DRAFT_SHAPES = frozenset(
    {"mimo_v2", "mimo_v2_flash", "step3p5", "nemotron_h", "exaone_moe", "longcat_flash"}
)

_REFUSED = {
    "deepseek_v4": "compress_ratios: several compressed caches with layouts of their own",
    "deepseek_v41": "compress_ratios: several compressed caches with layouts of their own",
    "minimax": "attn_type_list: lightning attention keeps a state that is not modelled",
    "minimax_text_01": "attn_type_list: lightning attention keeps a state that is not modelled",
    "minimax_m3": "a sparse indexer cache",
    "zamba2": "one attention block shared by several layers",
    "mllama": "cross_attention_layers",
    "whisper": "is_encoder_decoder",
    "t5": "is_encoder_decoder",
    "bart": "is_encoder_decoder",
}

#: Fields that speak of another cache than one K and one V vector per token, head and layer.
_HINTS = (
    "attention_chunk_size",
    "attn_layer_indices",
    "attn_layer_period",
    "attn_type_list",
    "block_configs",
    "compress_ratios",
    "cross_attention_layers",
    "conv_L_cache",
    "full_attention_interval",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "index_topk",
    "is_encoder_decoder",
    "kv_lora_rank",
    "layers_block_type",
    "linear_attn_config",
    "linear_num_value_heads",
    "mamba_d_state",
    "num_global_key_value_heads",
    "num_kv_shared_layers",
    "rswa_window",
    "sliding_window",
    "sliding_window_pattern",
    "sliding_window_size",
    "ssm_state_size",
    "state_size",
    "v_head_dim",
    "window_size",
)


def _refuse_hints(fields: Fields) -> None:
    hints = [key for key in _HINTS if fields.get(key)]
    listed = fields.listed("layer_types") or ()
    odd = sorted({str(kind) for kind in listed} - {"full_attention", "attention"})
    if odd:
        hints.append(f"layer_types ({', '.join(odd)})")
    if fields.get("use_sliding_window", True) is False:
        hints = [hint for hint in hints if not hint.startswith("sliding_window")]
    if hints:
        raise UnsupportedModel(
            f"model_type {fields.model_type!r} is not known, and these fields could not be placed: "
            + ", ".join(hints),
            where=fields.name,
            next_move="describe the model as one of the known types, or leave it out",
        )
