"""How many bytes each KV-cache format stores for one token of one layer.

Method: every format of the pinned engine (vLLM 0.32.0) is one row that says what a K vector and
a V vector of one head occupy, scales included. Latent (MLA) caches keep one vector per token and
no separate V. Not covered: formats whose layout is private to a kernel that is not modelled here
(they are refused by name), and the per-tensor scales, which live with the weights.

Source: ``vllm/config/cache.py`` (names), ``customize_spec`` of the attention backends (layouts).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Literal

from harness.errors import InputError, UnsupportedModel, did_you_mean
from harness.units import Bytes

#: Bytes of one element of a tensor type, by the names that configs and flags use.
ELEMENT_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "float64": 8,
        "float32": 4,
        "float": 4,
        "bfloat16": 2,
        "float16": 2,
        "half": 2,
        "float8_e4m3fn": 1,
        "float8_e5m2": 1,
        "int8": 1,
        "uint8": 1,
    }
)

#: Two fp32 scales, one for the K and one for the V vector of each token and head.
_TOKEN_HEAD_SCALES: Bytes = 8
#: One fp16 norm beside each K vector, one fp16 scale and zero point beside each V vector.
_TURBOQUANT_NORM: Bytes = 2
_TURBOQUANT_SCALE_AND_ZERO: Bytes = 4
#: NVFP4 keeps one fp8 scale for each 16 values.
_NVFP4_GROUP = 16

Layout = Literal["dense", "token_head", "nvfp4", "turboquant", "latent_blob"]


@dataclass(frozen=True, slots=True)
class KvDtype:
    """One value of ``--kv-cache-dtype``.

    ``key_bits`` and ``value_bits`` are per element, scales not counted. ``blob_bytes`` is what a
    latent cache stores per token where a kernel packs it opaquely.
    """

    name: str
    layout: Layout
    key_bits: int
    value_bits: int
    blob_bytes: Bytes | None = None

    def token_bytes(self, kv_heads: int, head_dim: int, head_dim_v: int) -> Bytes:
        """Bytes of one token in one layer: ``kv_heads`` K vectors and as many V vectors.

        Raises:
            UnsupportedModel: the format can't hold heads of these sizes.
        """
        if self.layout == "latent_blob":
            raise _refuse(self.name, "a cache of separate K and V heads")
        if self.layout == "nvfp4":
            return 2 * kv_heads * self._nvfp4_vector(head_dim, head_dim_v)
        if self.layout == "turboquant":
            return kv_heads * self._turboquant_slot(head_dim, head_dim_v)
        vectors = head_dim * self.key_bits // 8 + head_dim_v * self.value_bits // 8
        scales = _TOKEN_HEAD_SCALES if self.layout == "token_head" else 0
        return kv_heads * (vectors + scales)

    def latent_bytes(self, latent_dim: int) -> Bytes:
        """Bytes of one token in one latent (MLA) layer of ``latent_dim`` elements, rope included.

        Raises:
            UnsupportedModel: no latent layout of this format is modelled.
        """
        if self.blob_bytes is not None:
            return self.blob_bytes
        if self.layout in ("nvfp4", "turboquant"):
            raise _refuse(self.name, "a latent (MLA) cache")
        scales = _TOKEN_HEAD_SCALES if self.layout == "token_head" else 0
        return latent_dim * self.key_bits // 8 + scales

    def _nvfp4_vector(self, head_dim: int, head_dim_v: int) -> Bytes:
        if head_dim != head_dim_v or head_dim % _NVFP4_GROUP:
            raise _refuse(self.name, f"heads of {head_dim} and {head_dim_v} elements")
        return head_dim // 2 + head_dim // _NVFP4_GROUP

    def _turboquant_slot(self, head_dim: int, head_dim_v: int) -> Bytes:
        if head_dim != head_dim_v:
            raise _refuse(self.name, f"heads of {head_dim} and {head_dim_v} elements")
        norm = 0 if self.key_bits == 8 else _TURBOQUANT_NORM
        key = ceil(head_dim * self.key_bits / 8) + norm
        value = ceil(head_dim * self.value_bits / 8) + _TURBOQUANT_SCALE_AND_ZERO
        slot = key + value
        # The kernel halves the slot into an "effective head size", so it must be even.
        return slot + slot % 2


def _refuse(name: str, what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"KV dtype {name!r} has no modelled layout for {what}",
        next_move="choose another kv_cache_dtype",
    )


def _dense(name: str, bits: int) -> KvDtype:
    return KvDtype(name, "dense", bits, bits)


_ROWS = (
    _dense("float32", 32),
    _dense("float16", 16),
    _dense("bfloat16", 16),
    _dense("fp8", 8),
    _dense("fp8_e4m3", 8),
    _dense("fp8_e5m2", 8),
    KvDtype("int8_per_token_head", "token_head", 8, 8),
    KvDtype("fp8_per_token_head", "token_head", 8, 8),
    KvDtype("int4_per_token_head", "token_head", 4, 4),
    KvDtype("nvfp4", "nvfp4", 4, 4),
    KvDtype("nvfp4_4over6", "nvfp4", 4, 4),
    KvDtype("turboquant_k8v4", "turboquant", 8, 4),
    KvDtype("turboquant_4bit_nc", "turboquant", 4, 4),
    KvDtype("turboquant_k3v4_nc", "turboquant", 3, 4),
    KvDtype("turboquant_3bit_nc", "turboquant", 3, 3),
    # FlashMLA's sparse kernels store 512 fp8 + 4 fp32 scales + 64 bf16 in one row.
    KvDtype("fp8_ds_mla", "latent_blob", 8, 0, blob_bytes=656),
    KvDtype("nvfp4_ds_mla", "latent_blob", 4, 0, blob_bytes=352),
)
KV_DTYPES: Mapping[str, KvDtype] = MappingProxyType({row.name: row for row in _ROWS})

#: What people call a format, and how the engine spells it.
_CALLED: Mapping[str, str] = MappingProxyType(
    {
        "fp16": "'float16', or 'auto' (the model's own type)",
        "bf16": "'bfloat16', or 'auto' (the model's own type)",
        "int8": "'int8_per_token_head'",
        "int4": "'int4_per_token_head'",
        "fp4": "'nvfp4'",
        "e4m3": "'fp8_e4m3'",
        "e5m2": "'fp8_e5m2'",
    }
)

#: Legal values of the engine's flag whose layout is not modelled.
UNMODELLED = ("fp8_inc", "ultraquant_4bit")


def kv_dtype(name: str) -> KvDtype:
    """Return the format that ``--kv-cache-dtype name`` stores (``auto`` must be resolved before).

    Raises:
        UnsupportedModel: the engine knows the format, its layout is not modelled.
        InputError: no such format.
    """
    canonical = {"half": "float16", "float": "float32"}.get(name, name)
    if canonical in UNMODELLED:
        raise UnsupportedModel(f"the layout of KV dtype {name!r} is not modelled", legal=KV_DTYPES)
    if canonical not in KV_DTYPES:
        raise InputError(
            f"unknown KV dtype {name!r}",
            legal=("auto", *KV_DTYPES),
            next_move=kv_dtype_hint(name, KV_DTYPES),
        )
    return KV_DTYPES[canonical]


def kv_dtype_hint(name: str, legal: Iterable[str]) -> str | None:
    """Which of the legal names a person may have meant, such as ``float16`` by ``fp16``."""
    called = _CALLED.get(name.lower())
    return f"did you mean {called}?" if called else did_you_mean(name, legal)


def element_bytes(dtype: str) -> int:
    """Bytes of one element of ``dtype`` (``bfloat16`` → 2).

    Raises:
        InputError: no such tensor type.
    """
    name = dtype.removeprefix("torch.")
    if name not in ELEMENT_BYTES:
        raise InputError(f"unknown tensor dtype {dtype!r}", legal=ELEMENT_BYTES)
    return ELEMENT_BYTES[name]
