"""Which layers of a model see everything, which a window, and how wide it is.

Method: a config either lists ``layer_types`` or implies them by a repeating pattern, whose
default differs by model type. Source: the configuration classes of transformers 5.19 (patterns)
and the model classes of vLLM 0.32.0 (which of them act on a window, and its width).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from harness.errors import ModelConfigError, UnsupportedModel
from harness.specs.fields import Fields

Sight = Literal["full", "sliding", "chunked"]
_FULL: Sight = "full"

_SIGHTS: dict[str, Sight] = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "sliding_attention": "sliding",
    "sliding_window_attention": "sliding",
    "local_attention": "sliding",
    "chunked_attention": "chunked",
}


def sights(fields: Fields) -> tuple[Sight, ...]:
    """What each layer sees, in layer order.

    Raises:
        UnsupportedModel: a kind of layer, or a window, that this model type has no rule for.
    """
    rule = WINDOW_RULES.get(fields.model_type, _by_layer_types)
    return rule(fields)


def window_of(fields: Fields, sight: Sight) -> int | None:
    """Tokens that a layer attends to, itself included; None for full attention."""
    if sight == "full":
        return None
    if sight == "chunked":
        return fields.whole("attention_chunk_size", fields.integer("attention_chunk_size"), 1)
    window = fields.integer("sliding_window", "sliding_window_size", "window_size")
    fields.whole("sliding_window", window, 1)
    if fields.get("use_bidirectional_attention") == "all":
        return window // 2 + 1
    return window + _WIDENED.get(fields.model_type, 0)


#: Model types whose mask reaches one token further back than the config's figure.
_WIDENED = {"cohere2": 1, "cohere2_moe": 1}


def listed_layer_types(fields: Fields) -> list[str] | None:
    """``layer_types`` of the config, checked against the layer count; None if it isn't there."""
    listed = fields.get("layer_types")
    if listed is None:
        return None
    if not isinstance(listed, list | tuple):
        raise ModelConfigError(f"layer_types is no list: {listed!r}", where=fields.name)
    if len(listed) < fields.layer_count:
        raise ModelConfigError(
            f"layer_types has {len(listed)} entries for {fields.layer_count} layers",
            where=fields.name,
        )
    return [str(kind) for kind in listed[: fields.layer_count]]


def _named(fields: Fields, listed: list[str]) -> tuple[Sight, ...]:
    unknown = sorted({kind for kind in listed if kind not in _SIGHTS})
    if unknown:
        raise UnsupportedModel(
            f"layer_types holds {', '.join(map(repr, unknown))}, which has no modelled cache",
            where=fields.name,
            legal=_SIGHTS,
        )
    return tuple(_SIGHTS[kind] for kind in listed)


def _by_layer_types(fields: Fields) -> tuple[Sight, ...]:
    """The engine's general rule: listed types win; else one window for all layers, or none."""
    if (listed := listed_layer_types(fields)) is not None:
        return _named(fields, listed)
    return _uniform(fields)


def _uniform(fields: Fields) -> tuple[Sight, ...]:
    sees: Sight = "sliding" if fields.optional_integer("sliding_window") else "full"
    return (sees,) * fields.layer_count


def _pattern(default: int) -> Callable[[Fields], tuple[Sight, ...]]:
    """Every n-th layer sees everything, the others a window."""

    def rule(fields: Fields) -> tuple[Sight, ...]:
        if (listed := listed_layer_types(fields)) is not None:
            return _named(fields, listed)
        if not fields.optional_integer("sliding_window"):
            return (_FULL,) * fields.layer_count
        pattern = fields.get("sliding_window_pattern", fields.get("_sliding_window_pattern"))
        return _repeat(fields, default if pattern is None else pattern)

    return rule


def _sliding_where(flags: Iterable[bool]) -> tuple[Sight, ...]:
    kinds: list[Sight] = ["sliding" if flag else "full" for flag in flags]
    return tuple(kinds)


def _repeat(fields: Fields, pattern: object) -> tuple[Sight, ...]:
    count = fields.layer_count
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        # In the letter form the last layer always is global.
        letters = [pattern[i % len(pattern)] for i in range(count - 1)] + ["G"]
        return _sliding_where(letter == "L" for letter in letters)
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        return _sliding_where((i + 1) % pattern != 0 for i in range(count))
    raise ModelConfigError(f"sliding_window_pattern {pattern!r} is no pattern", where=fields.name)


def _after_dense_layers(fields: Fields) -> tuple[Sight, ...]:
    """Leading dense layers have a pattern of their own (1: all see everything)."""
    if (listed := listed_layer_types(fields)) is not None:
        return _named(fields, listed)
    dense = min(fields.optional_integer("first_k_dense_replace") or 0, fields.layer_count)
    own = fields.optional_integer("prefix_dense_sliding_window_pattern") or 1
    every = fields.optional_integer("sliding_window_pattern") or 4
    begin = _sliding_where((i + 1) % own != 0 for i in range(dense))
    rest = _sliding_where((i + 1) % every != 0 for i in range(fields.layer_count - dense))
    return (*begin, *rest)


def _last_is_global(fields: Fields) -> tuple[Sight, ...]:
    """One global layer in six, and the last one in any case."""
    found = _pattern(6)(fields)
    return (*found[:-1], _FULL)


def _alternating(fields: Fields) -> tuple[Sight, ...]:
    """Even layers slide whatever ``layer_types`` says: the model class counts, it doesn't read."""
    return _sliding_where(i % 2 == 0 for i in range(fields.layer_count))


def _even_or_listed(fields: Fields) -> tuple[Sight, ...]:
    """Listed types, or every other layer where none are listed."""
    if (listed := listed_layer_types(fields)) is not None:
        return _named(fields, listed)
    return _alternating(fields)


def _chunked(fields: Fields) -> tuple[Sight, ...]:
    """Layers with rotary positions attend within a chunk, those without see everything."""
    count = fields.layer_count
    rope = _rotary_layers(fields)
    if not fields.optional_integer("attention_chunk_size"):
        return (_FULL,) * count
    kinds: list[Sight] = ["chunked" if rope[i] else "full" for i in range(count)]
    return tuple(kinds)


def _rotary_layers(fields: Fields) -> list[bool]:
    """Which layers have rotary positions: a list, or all but every n-th."""
    count = fields.layer_count
    if listed := fields.listed("no_rope_layers"):
        if len(listed) < count:
            raise ModelConfigError(
                f"no_rope_layers has {len(listed)} entries for {count} layers", where=fields.name
            )
        return [fields.whole("no_rope_layers", int(has), most=1) == 1 for has in listed[:count]]
    stated = fields.optional_integer("no_rope_layer_interval")
    interval = fields.whole("no_rope_layer_interval", 4 if stated is None else stated, 1)
    return [(i + 1) % interval != 0 for i in range(count)]


def _behind_a_switch(fields: Fields) -> tuple[Sight, ...]:
    """``use_sliding_window`` decides, and the model class knows only one kind for all layers."""
    if (listed := listed_layer_types(fields)) is not None:
        found = _named(fields, listed)
        return found if set(found) == {"sliding"} else (_FULL,) * fields.layer_count
    if not (fields.flag("use_sliding_window") and fields.optional_integer("sliding_window")):
        return (_FULL,) * fields.layer_count
    first = fields.optional_integer("max_window_layers")
    if first is not None and 0 < first < fields.layer_count:
        raise UnsupportedModel(
            f"use_sliding_window from layer max_window_layers {first} on: the engine refuses a "
            "window in some layers of this model type",
            where=fields.name,
        )
    return _sliding_where(first == 0 for _ in range(fields.layer_count))


def _rope_switch(fields: Fields) -> tuple[Sight, ...]:
    """Layers without rotary positions slide, if the switch is on."""
    if (listed := listed_layer_types(fields)) is not None:
        return _named(fields, listed)
    if not (fields.flag("use_sliding_window") and fields.optional_integer("sliding_window")):
        return (_FULL,) * fields.layer_count
    return _sliding_where(not has_rope for has_rope in _rotary_layers(fields))


def _never(fields: Fields) -> tuple[Sight, ...]:
    """The model class ignores any window in the config."""
    return (_FULL,) * fields.layer_count


_SWITCHED = (
    "qwen2",
    "qwen2_moe",
    "qwen2_vl",
    "qwen2_vl_text",
    "qwen2_5_vl",
    "qwen2_5_vl_text",
    "qwen3",
    "qwen3_moe",
    "qwen3_vl",
    "qwen3_vl_text",
    "qwen3_vl_moe",
    "qwen3_vl_moe_text",
)

#: Model types whose layers do not all see the same, or that read their config in their own way.
WINDOW_RULES: dict[str, Callable[[Fields], tuple[Sight, ...]]] = {
    **dict.fromkeys(_SWITCHED, _behind_a_switch),
    "gemma2": _pattern(2),
    "gemma3": _pattern(6),
    "gemma3_text": _pattern(6),
    "gemma3n": _pattern(5),
    "gemma3n_text": _pattern(5),
    "gemma4": _last_is_global,
    "gemma4_text": _last_is_global,
    "gemma4_unified": _last_is_global,
    "gemma4_unified_text": _last_is_global,
    "cohere2": _pattern(4),
    "cohere2_moe": _after_dense_layers,
    "exaone4": _pattern(4),
    "olmo3": _pattern(4),
    "step3p5": _even_or_listed,
    "gpt_oss": _alternating,
    "llama4": _chunked,
    "llama4_text": _chunked,
    "smollm3": _rope_switch,
    "phimoe": _never,
}
