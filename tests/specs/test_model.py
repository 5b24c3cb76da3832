from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import ModelConfigError, NotFound, UnsupportedModel
from harness.specs.model import (
    MAX_CONFIG_BYTES,
    model_spec,
    read_config,
    shipped_config,
    shipped_names,
)


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_model_can_be_read(name: str) -> None:
    config = shipped_config(name)
    assert config is not None
    assert model_spec(config, name=name).layers


def test_dozens_of_models_are_shipped() -> None:
    assert len(shipped_names()) >= 60


def test_a_shipped_model_is_found_in_any_case_and_by_its_last_part() -> None:
    whole = shipped_config("meta-llama/Llama-3.1-8B-Instruct")
    assert whole == shipped_config("META-LLAMA/llama-3.1-8b-instruct")
    assert whole == shipped_config("Llama-3.1-8B-Instruct")
    assert shipped_config("nobody/nothing") is None


def test_the_embedded_model_is_the_one_that_scenarios_name() -> None:
    model = model_spec(read_config("smollm2-135m-instruct"), name="smollm2-135m-instruct")
    layer = model.attention_layers[0]
    assert (model.layer_count, model.heads, layer.kv_heads, layer.head_dim) == (30, 9, 3, 64)
    assert (model.dtype, model.max_model_len) == ("bfloat16", 8192)


def test_a_config_is_read_from_a_file_and_from_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "llama"}))
    assert read_config(file) == read_config(tmp_path) == {"model_type": "llama"}


def test_an_unknown_name_is_not_found_and_a_near_one_is_suggested() -> None:
    with pytest.raises(NotFound) as caught:
        read_config("meta-llama/Llama-3.1-8B-Instrct")
    assert "Llama-3.1-8B-Instruct" in (caught.value.next_move or "")


def test_a_folder_without_a_config_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_file_that_is_no_json_object_is_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ModelConfigError):
        read_config(file)


def test_a_missing_vocabulary_is_no_error() -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_size": 64,
    }
    assert len(model_spec(config, name="small").layers) == 2


def test_a_missing_dtype_is_assumed_and_said() -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_size": 64,
    }
    assert "bfloat16 is assumed" in model_spec(config, name="small").notes[0]


def test_a_config_without_layers_is_an_error() -> None:
    with pytest.raises(ModelConfigError, match="num_hidden_layers"):
        model_spec({"model_type": "llama"}, name="empty")


def test_a_refusal_names_every_field_that_could_not_be_placed() -> None:
    config = {
        "model_type": "brand_new",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_size": 64,
        "kv_lora_rank": 32,
        "index_topk": 8,
        "layer_types": ["full_attention", "lightning"],
    }
    with pytest.raises(UnsupportedModel) as caught:
        model_spec(config, name="new")
    for field in ("kv_lora_rank", "index_topk", "lightning"):
        assert field in caught.value.what


def test_an_unknown_type_without_hints_is_read_as_a_plain_decoder() -> None:
    config = {
        "model_type": "brand_new",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_size": 64,
    }
    kinds = [layer.kind for layer in model_spec(config, name="new").attention_layers]
    assert kinds == ["full", "full"]


def test_a_file_that_is_far_longer_than_any_config_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    with file.open("wb") as opened:
        # A hole: it takes no room on the disk, and would take a terabyte of memory.
        opened.truncate(1 << 40)
    with pytest.raises(ModelConfigError, match=f"more than {MAX_CONFIG_BYTES:,} bytes"):
        read_config(file)
