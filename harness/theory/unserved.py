"""What the pinned engine, or the eviction plugin, would refuse although bytes can be counted.

Method: what can be told from the config alone: KV dtypes that no attention backend for latent
(MLA) caches takes, and models that token eviction refuses. Not covered: what depends on the card's
kernels, and refusals that need the model's code.

Source: vLLM 0.32.0, ``supported_kv_cache_dtypes`` in ``v1/attention/backends/mla``; for eviction
``engines/eviction/refusals.py``.
"""

from __future__ import annotations

from harness.specs.fields import Fields
from harness.specs.layers import AttentionLayer
from harness.specs.model import ModelSpec
from harness.theory.kv import resolved_kv_dtype
from harness.theory.settings import EngineSettings

#: What some MLA backend takes; the rows of sparse attention hold one row for all.
LATENT_KV_DTYPES = frozenset(
    {
        "auto",
        "float16",
        "bfloat16",
        "fp8",
        "fp8_e4m3",
        "fp8_e5m2",
        "fp8_ds_mla",
        "nvfp4_ds_mla",
    }
)
#: Model types whose attention learns its sinks.
_OWN_SINKS = ("gpt_oss",)
#: A type whose soft cap is set unless the config says otherwise, and the field that sets one.
_CAPPED = ("gemma2",)
_SOFT_CAP = "attn_logit_softcapping"


def kv_dtype_unserved(model: ModelSpec, settings: EngineSettings) -> str | None:
    """Why no attention backend would take this KV dtype; None where nothing is known against it.

    Raises:
        InputError, UnsupportedModel: no such dtype, or none that is modelled.
    """
    name = resolved_kv_dtype(model, settings).name
    if not model.uses_mla or name in LATENT_KV_DTYPES or settings.kv_cache_dtype == "auto":
        return None
    return f"refused: no MLA backend of vLLM 0.32.0 takes {name}"


def eviction_unserved(model: ModelSpec) -> str | None:
    """Why the eviction plugin would refuse this model; None where nothing is known against it."""
    if model.uses_mla:
        return "refused by the plugin: MLA (latent caches)"
    if model.is_hybrid:
        return "refused by the plugin: recurrent layers"
    if model.model_type in _OWN_SINKS:
        return "refused by the plugin: learned attention sinks"
    capped = Fields(model.config, model.name).get(_SOFT_CAP) is not None
    if capped or model.model_type in _CAPPED:
        return "refused by the plugin: a soft cap on attention logits"
    if not any(_sees_all(layer) for layer in model.attention_layers):
        return "refused by the plugin: no layer sees the whole context"
    return None


def window_pointless(model: ModelSpec, window: int) -> str | None:
    """Why a model like this with such a window would be no other model; None where it would."""
    if model.uses_mla:
        return "latent (MLA) layers have no window"
    windows = [layer.window for layer in model.attention_layers]
    if windows and all(own is not None and own <= window for own in windows):
        return "the model's own layers have no longer window"
    return None


def _sees_all(layer: AttentionLayer) -> bool:
    return layer.window is None
