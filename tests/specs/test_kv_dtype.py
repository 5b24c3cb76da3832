from __future__ import annotations

import pytest

from harness.errors import InputError, UnsupportedModel
from harness.specs.kv_dtype import KV_DTYPES, element_bytes, kv_dtype


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 8 heads × (128 + 128) elements × 2 bytes
        ("bfloat16", 4096),
        ("float16", 4096),
        ("float32", 8192),
        ("fp8", 2048),
        ("fp8_e4m3", 2048),
        ("fp8_e5m2", 2048),
        # 8 × (256 bytes + two fp32 scales)
        ("int8_per_token_head", 8 * 264),
        ("fp8_per_token_head", 8 * 264),
        # 8 × (64 + 64 packed bytes + two fp32 scales)
        ("int4_per_token_head", 8 * 136),
        # K and V of 8 heads: 64 bytes of fp4 + 8 fp8 scales each
        ("nvfp4", 16 * 72),
        ("nvfp4_4over6", 16 * 72),
        # 128 fp8 + (64 packed + 4) = 196, even
        ("turboquant_k8v4", 8 * 196),
        # (64 + 2) + (64 + 4) = 134
        ("turboquant_4bit_nc", 8 * 134),
        # (48 + 2) + (64 + 4) = 118
        ("turboquant_k3v4_nc", 8 * 118),
        # (48 + 2) + (48 + 4) = 102
        ("turboquant_3bit_nc", 8 * 102),
    ],
)
def test_eight_heads_of_128_store_these_bytes_per_token(name: str, expected: int) -> None:
    assert kv_dtype(name).token_bytes(8, 128, 128) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 512 latent + 64 rotary elements
        ("bfloat16", 1152),
        ("fp8", 576),
        ("int8_per_token_head", 576 + 8),
        ("int4_per_token_head", 288 + 8),
        ("fp8_ds_mla", 656),
        ("nvfp4_ds_mla", 352),
    ],
)
def test_a_latent_of_576_stores_these_bytes_per_token(name: str, expected: int) -> None:
    assert kv_dtype(name).latent_bytes(576) == expected


def test_a_slot_of_odd_size_is_rounded_up_to_even() -> None:
    # head_dim 9: K ceil(9 · 3 / 8) + 2 = 6; V ceil(9 · 4 / 8) + 4 = 9; 15 → 16.
    assert kv_dtype("turboquant_k3v4_nc").token_bytes(1, 9, 9) == 16


@pytest.mark.parametrize("name", ["fp8_inc", "ultraquant_4bit"])
def test_a_dtype_without_a_modelled_layout_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=name):
        kv_dtype(name)


@pytest.mark.parametrize("name", ["nvfp4", "turboquant_k8v4"])
def test_packed_formats_are_refused_for_latent_caches(name: str) -> None:
    with pytest.raises(UnsupportedModel, match="latent"):
        kv_dtype(name).latent_bytes(576)


@pytest.mark.parametrize("name", ["nvfp4", "turboquant_k8v4"])
def test_packed_formats_are_refused_for_unlike_k_and_v(name: str) -> None:
    with pytest.raises(UnsupportedModel, match="192 and 128"):
        kv_dtype(name).token_bytes(4, 192, 128)


def test_latent_formats_are_refused_for_k_and_v_heads() -> None:
    with pytest.raises(UnsupportedModel, match="K and V heads"):
        kv_dtype("fp8_ds_mla").token_bytes(8, 128, 128)


def test_a_misspelt_dtype_gets_the_legal_ones_and_a_suggestion() -> None:
    with pytest.raises(InputError) as caught:
        kv_dtype("fp8_e4m4")
    assert caught.value.next_move == "did you mean 'fp8_e4m3'?"
    assert set(KV_DTYPES) <= set(caught.value.legal or ())


def test_tensor_dtypes_are_known_with_and_without_their_library_prefix() -> None:
    assert element_bytes("torch.bfloat16") == element_bytes("float16") == 2
    with pytest.raises(InputError, match="complex64"):
        element_bytes("complex64")
