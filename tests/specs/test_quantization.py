from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from harness.errors import InputError, UnsupportedModel
from harness.specs.fields import Fields
from harness.specs.quantization import (
    ENGINE_METHODS,
    check_method,
    checkpoint_kv_dtype,
    weight_bits,
)


def of(section: dict[str, Any] | None) -> Fields:
    return Fields({"quantization_config": section}, "a model")


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (None, "auto"),
        ({"quant_method": "awq"}, "auto"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, "auto"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}, "fp8"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
        (
            {
                "quant_method": "modelopt",
                "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            },
            "fp8_e4m3",
        ),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 2, "type": "int"}}, "auto"),
        (
            {"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}},
            "fp8_e4m3",
        ),
    ],
)
def test_auto_follows_what_the_checkpoint_says(
    section: dict[str, Any] | None, expected: str
) -> None:
    assert checkpoint_kv_dtype(of(section)) == expected


def test_plain_weights_have_no_bits_of_their_own() -> None:
    assert weight_bits(of(None)) is None


@pytest.mark.parametrize(
    ("section", "bits"),
    [
        # one fp32 scale per 128 × 128 block
        ({"quant_method": "fp8"}, 8 + 32 / 16384),
        # 4 bits, and one fp16 scale and one 4-bit zero point per 128
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
            },
            4 + 16 / 32,
        ),
    ],
)
def test_bits_per_weight_count_the_scales(section: dict[str, Any], bits: float) -> None:
    found = weight_bits(of(section))
    assert found is not None
    assert found.bits == pytest.approx(bits)


def test_one_format_quantises_the_experts_only() -> None:
    found = weight_bits(of({"quant_method": "mxfp4"}))
    assert found is not None
    assert found.only_experts
    assert found.bits == 4.25


def test_the_servers_flag_counts_where_the_checkpoint_is_plain() -> None:
    found = weight_bits(of(None), "fp8")
    assert found is not None
    assert 8 <= found.bits < 8.01


def test_an_unknown_method_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="aqlm"):
        weight_bits(of({"quant_method": "aqlm"}))


def test_the_methods_are_those_of_the_installed_engine() -> None:
    # Found, not imported: that would load torch.
    engine = importlib.util.find_spec("vllm")
    assert engine is not None
    assert engine.origin is not None
    room = Path(engine.origin).parent / "model_executor" / "layers" / "quantization"
    source = (room / "__init__.py").read_text(encoding="utf-8")
    listed = re.search(
        r"^QuantizationMethods = Literal\[(.*?)^\]", source, re.DOTALL | re.MULTILINE
    )
    assert listed is not None
    assert tuple(re.findall(r'^\s*"([^"]+)",', listed[1], re.MULTILINE)) == ENGINE_METHODS


def test_a_method_that_nobody_knows_is_refused_with_the_legal_ones() -> None:
    for name in (*ENGINE_METHODS, "bitsandbytes"):
        check_method(name)
    with pytest.raises(InputError, match="unknown quantisation of weights 'awk'") as caught:
        check_method("awk")
    assert "awq" in (caught.value.next_move or "")
