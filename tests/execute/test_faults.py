"""What a model can't do is told with file and line before anything starts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.errors import ScenarioError
from harness.execute.faults import model_faults
from harness.scenario import Scenario, load_scenario
from tests.execute.test_local import CONFIG

FILE = """\
schema: 1
name: demo
model: MODEL
baseline: fp16
server:
  max_model_len: 1024
variants:
  fp16: {}
  fp8:
    kv_cache_dtype: fp8
kv_budget: {equal_bytes: 117964800}
workloads:
  - {context_tokens: 64, output_tokens: 4, num_prompts: 6, concurrency: 2}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(CONFIG)
    return folder


def load(tmp_path: Path, text: str, *overrides: str) -> Scenario:
    path = tmp_path / "demo.yaml"
    path.write_text(text.replace("MODEL", str(tmp_path / "model")))
    return load_scenario(path, "cpu", overrides=overrides, further=model_faults)


def refused(tmp_path: Path, old: str, new: str) -> ScenarioError:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, FILE.replace(old, new))
    return caught.value


@pytest.mark.usefixtures("model")
def test_a_scenario_that_fits_its_model_has_no_fault(tmp_path: Path) -> None:
    assert load(tmp_path, FILE).name == "demo"


@pytest.mark.usefixtures("model")
def test_a_length_beyond_the_models_is_told_with_its_line(tmp_path: Path) -> None:
    error = refused(tmp_path, "max_model_len: 1024", "max_model_len: 200000")
    assert error.where == f"{tmp_path / 'demo.yaml'}:6 (server.max_model_len)"
    # max_position_embeddings of the model is 8,192.
    assert "max_model_len 200,000 is more than the 8,192 tokens" in error.what
    assert error.legal == ("1 to 8192",)
    error = refused(tmp_path, "    kv_cache_dtype: fp8", "    max_model_len: 8193")
    assert error.where == f"{tmp_path / 'demo.yaml'}:10 (variants.fp8.max_model_len)"


@pytest.mark.usefixtures("model")
def test_a_length_that_was_stretched_or_allowed_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FILE.replace("117964800", "8GiB").replace("max_model_len: 1024", "max_model_len: 16384")
    with pytest.raises(ScenarioError):
        load(tmp_path, text)
    # 8,192 tokens stretched by 2 are 16,384.
    rope = "{rope_scaling: {rope_type: linear, factor: 2.0}}"
    load(tmp_path, text, f"server.hf_overrides={rope}")
    load(tmp_path, text, "env.VLLM_ALLOW_LONG_MAX_MODEL_LEN=1")
    load(tmp_path, text, "unchecked_flags=[max_model_len]")
    monkeypatch.setitem(os.environ, "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    load(tmp_path, text)


def test_of_a_model_that_states_no_length_nothing_is_held_against_it(
    tmp_path: Path, model: Path
) -> None:
    config = json.loads(CONFIG)
    del config["max_position_embeddings"]
    (model / "config.json").write_text(json.dumps(config))
    text = FILE.replace("117964800", "100GiB")
    load(tmp_path, text.replace("max_model_len: 1024", "max_model_len: 200000"))


@pytest.mark.usefixtures("model")
def test_a_pool_that_holds_no_whole_request_is_told_with_its_line(tmp_path: Path) -> None:
    # 1,024 tokens × 23,040 B are 22.5 MiB; blocks of 128 tokens take 2.8 MiB each.
    error = refused(tmp_path, "equal_bytes: 117964800", "equal_bytes: 10MiB")
    assert error.where == f"{tmp_path / 'demo.yaml'}:11 (kv_budget)"
    assert "a pool of 10.00 MiB holds" in error.what
    assert "of max_model_len 1,024 of variant 'fp16'" in error.what


@pytest.mark.usefixtures("model")
def test_a_fault_that_knew_only_its_key_gets_file_and_line(tmp_path: Path) -> None:
    error = refused(
        tmp_path,
        "    kv_cache_dtype: fp8",
        "    hf_overrides: {num_key_value_heads: 4}",
    )
    place = "10 (variants.fp8.hf_overrides.num_key_value_heads)"
    assert error.where == f"{tmp_path / 'demo.yaml'}:{place}"
    assert error.legal == ("1", "3", "9")


@pytest.mark.usefixtures("model")
def test_an_attached_server_is_its_own_business(tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    text = FILE.replace("max_model_len: 1024", "max_model_len: 200000")
    path.write_text(text.replace("MODEL", "some/model"))
    url = "http://127.0.0.1:9/v1"
    assert load_scenario(path, "cpu", attach=url, further=model_faults).attach == url


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("flags", "told", "legal"),
    [
        # The model has 9 query heads over 3 KV heads: 2 divides neither, 9 is 3 times the latter.
        ("tensor_parallel_size: 2", "9 attention heads", ("1", "3", "9")),
        ("pipeline_parallel_size: 500", "exceeds 30 layers", ("1 to 30",)),
        (
            "tensor_parallel_size: 9\n    decode_context_parallel_size: 2",
            "must divide tensor_parallel_size 9",
            ("1", "3", "9"),
        ),
        ("hf_overrides: {max_position_embeddings: 0}", "max_position_embeddings is 0", None),
        ("hf_overrides: {num_hidden_layers: 1000000000}", "1000000000, out of range", None),
        (
            "hf_overrides: {rope_scaling: {rope_type: linear, factor: abc}}",
            "rope_scaling.factor is 'abc'",
            ("a number above 0",),
        ),
    ],
)
def test_what_the_model_can_not_be_told_is_refused_with_line_and_legal_values(
    tmp_path: Path, flags: str, told: str, legal: tuple[str, ...] | None
) -> None:
    error = refused(tmp_path, "    kv_cache_dtype: fp8", f"    {flags}")
    assert told in error.what
    name = flags.split("\n")[-1].strip().partition(":")[0]
    line = 10 + flags.count("\n")
    assert (error.where or "").endswith(f"demo.yaml:{line} (variants.fp8.{name})")
    assert error.legal == legal or (legal is None and error.legal)
