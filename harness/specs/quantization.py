"""What a checkpoint's ``quantization_config`` says about KV cache and weights.

Source: vLLM 0.32.0, ``utils/torch_utils.py`` (``get_kv_cache_quant_algo_string``) and
``model_executor/layers/attention/attention.py`` (``kv_cache_scheme``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import InputError, UnsupportedModel, did_you_mean
from harness.specs.fields import Fields

_MODELOPT_KV = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


def quantization(fields: Fields) -> Mapping[str, Any] | None:
    """The quantisation section of a config, wherever it stands; None for plain weights."""
    for key in ("quantization_config", "compression_config"):
        found = fields.get(key)
        if isinstance(found, Mapping):
            return found
    return None


def checkpoint_kv_dtype(fields: Fields) -> str:
    """What ``--kv-cache-dtype auto`` means for this checkpoint: a KV dtype, or ``auto``."""
    section = quantization(fields)
    if section is None:
        return "auto"
    method = str(section.get("quant_method", "")).lower()
    if method.startswith("modelopt") or _is_modelopt(section):
        return _modelopt_kv(section)
    # llm-compressor: any scheme makes the engine store fp8.
    return "fp8" if section.get("kv_cache_scheme") is not None else "auto"


def _is_modelopt(section: Mapping[str, Any]) -> bool:
    producer = section.get("producer")
    return isinstance(producer, Mapping) and producer.get("name") == "modelopt"


def _modelopt_kv(section: Mapping[str, Any]) -> str:
    inner = section.get("quantization")
    sources = (inner if isinstance(inner, Mapping) else {}, section)
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        for source in sources:
            if found := source.get(key):
                return _MODELOPT_KV.get(_algorithm(found), "auto")
    return "auto"


def _algorithm(found: object) -> str:
    if not isinstance(found, Mapping):
        return str(found).lower()
    if found.get("type") != "float":
        return ""
    static = found.get("dynamic") is False
    bits = found.get("num_bits")
    if bits == 4:
        return "nvfp4"
    return "fp8" if bits == 8 and static else ""


@dataclass(frozen=True, slots=True)
class WeightBits:
    """Bits of one weight of a quantised linear layer, its scales included."""

    bits: float
    only_experts: bool = False


#: Bits per weight of formats whose layout is fixed by their name: data plus scales.
_FIXED_BITS = {
    "fp8": 8 + 32 / (128 * 128),
    "fbgemm_fp8": 8.0,
    "modelopt": 8.0,
    "modelopt_fp4": 4 + 8 / 16,
    "mxfp4": 4 + 8 / 32,
    "bitsandbytes": 4 + 32 / 64,
    "torchao": 8.0,
}


#: What the engine's ``--quantization`` takes. Source: vLLM 0.32.0,
#: ``model_executor/layers/quantization/__init__.py`` (``QuantizationMethods``); a test holds this
#: against the installed engine's.
ENGINE_METHODS = (
    "awq",
    "auto_awq",
    "fp8",
    "fbgemm_fp8",
    "fp_quant",
    "modelopt",
    "modelopt_fp4",
    "modelopt_mxfp8",
    "modelopt_mixed",
    "auto_gptq",
    "gptq",
    "gptq_marlin",
    "awq_marlin",
    "humming",
    "compressed-tensors",
    "experts_int8",
    "quark",
    "moe_wna16",
    "torchao",
    "inc",
    "mxfp4",
    "gpt_oss_mxfp4",
    "deepseek_v4_fp8",
    "online",
    "fp8_per_tensor",
    "fp8_per_block",
    "fp8_per_channel",
    "int8_per_channel_weight_only",
    "nvfp4_per_token",
    "mxfp8",
)


def check_method(flag: str) -> None:
    """Refuse a ``--quantization`` that neither the engine nor this module knows.

    Raises:
        InputError: with the legal names.
    """
    legal = (*ENGINE_METHODS, *(name for name in _FIXED_BITS if name not in ENGINE_METHODS))
    if flag not in legal:
        raise InputError(
            f"unknown quantisation of weights {flag!r}",
            where="--quantization",
            legal=legal,
            next_move=did_you_mean(flag, legal),
        )


def weight_bits(fields: Fields, flag: str | None = None) -> WeightBits | None:
    """How linear layers are stored; None for plain weights.

    ``flag`` is the server's ``--quantization``, which counts where the checkpoint is plain.

    Raises:
        UnsupportedModel: a method whose bits can't be read from the config.
    """
    section = quantization(fields)
    if section is None:
        if flag is None:
            return None
        section = {"quant_method": flag}
    method = str(section.get("quant_method", "")).lower().replace("_", "-")
    if method == "mxfp4":
        return WeightBits(_FIXED_BITS["mxfp4"], only_experts=True)
    if method == "bitsandbytes" and section.get("load_in_8bit"):
        return WeightBits(8.0)
    if (fixed := _FIXED_BITS.get(method.replace("-", "_"))) is not None:
        return WeightBits(fixed)
    if method in ("awq", "gptq", "auto-round", "awq-marlin", "gptq-marlin"):
        return WeightBits(
            _grouped(fields, section.get("bits", 4), section.get("group_size", 128), 4)
        )
    if method == "compressed-tensors":
        return _compressed(section, fields)
    raise UnsupportedModel(f"weights quantised by {method!r} are not modelled", where=fields.name)


def _grouped(fields: Fields, bits: object, group: object, zero_bits: int) -> float:
    width = 4.0 if bits is None else float(fields.whole("the bits of a weight", bits, 1, 64))
    size = group if isinstance(group, int) and group > 0 else 0
    return width + ((16 + zero_bits) / size if size else 0.0)


def _compressed(section: Mapping[str, Any], fields: Fields) -> WeightBits:
    groups = section.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            bits, group = weights.get("num_bits"), weights.get("group_size")
            return WeightBits(_grouped(fields, bits, group, 0))
    raise UnsupportedModel("config_groups of compressed-tensors name no weights", where=fields.name)
