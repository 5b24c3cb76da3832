"""What a checkpoint's ``quantization_config`` says about KV cache and weights.

Source: vLLM 0.32.0, ``utils/torch_utils.py`` (``get_kv_cache_quant_algo_string``) and
``model_executor/layers/attention/attention.py`` (``kv_cache_scheme``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
