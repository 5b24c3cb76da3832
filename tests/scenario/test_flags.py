"""Flags are held against the pinned engine's before anything is started."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ScenarioError
from harness.scenario import Scenario, load_scenario
from harness.scenario.flags import flag_fault

ROOT = Path(__file__).resolve().parents[2]
FILE = """\
schema: 1
name: demo
model: some/model
baseline: fp16
server:
  max_model_len: 1024
variants:
  fp16: {}
  fp8:
    kv_cache_dtype: fp8
workloads:
  - {context_tokens: 64, output_tokens: 4, num_prompts: 6, concurrency: 2}
"""


def load(tmp_path: Path, text: str = FILE, *overrides: str) -> Scenario:
    path = tmp_path / "demo.yaml"
    path.write_text(text)
    return load_scenario(path, "cuda", overrides=overrides)


def refused(tmp_path: Path, old: str, new: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, FILE.replace(old, new))
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "line", "meant"),
    [
        ("max_model_len: 1024", "enable_prefx_caching: true", 6, "enable_prefix_caching"),
        ("kv_cache_dtype: fp8", "kv_cache_dtyp: fp8", 10, "kv_cache_dtype"),
        ("max_model_len: 1024", "compilation_confg.mode: 3", 6, "compilation_config"),
    ],
)
def test_a_misspelt_flag_is_told_with_its_line_and_what_was_meant(
    tmp_path: Path, old: str, new: str, line: int, meant: str
) -> None:
    told = refused(tmp_path, old, new)
    assert told.startswith(f"{tmp_path / 'demo.yaml'}:{line} ")
    assert "vLLM 0.32.0 has no flag" in told
    assert re.search(rf"legal: .*\b{meant}\b", told)
    assert f"did you mean {meant!r}?" in told
    assert f"unchecked_flags: [{new.split(':')[0].split('.')[0]}]" in told


def test_a_flag_set_on_the_command_line_is_told_as_the_option(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, FILE, "variants.fp8.enforce_eagr=true")
    assert caught.value.where == "--set variants.fp8.enforce_eagr=true"
    assert "did you mean 'enforce_eager'?" in (caught.value.next_move or "")


def test_a_flag_that_another_engine_knows_is_passed_on_where_it_is_listed(tmp_path: Path) -> None:
    text = FILE.replace("max_model_len: 1024", "kv_teleport: 3")
    with pytest.raises(ScenarioError, match="has no flag 'kv_teleport'"):
        load(tmp_path, text)
    assert load(tmp_path, text, "unchecked_flags=[kv_teleport]").server == {"kv_teleport": 3}
    # So is a value that only another version knows.
    text = FILE.replace("kv_cache_dtype: fp8", "kv_cache_dtype: fp3")
    listed = load(tmp_path, f"{text}unchecked_flags: [kv_cache_dtype]\n")
    assert listed.flags_of("fp8")["kv_cache_dtype"] == "fp3"


def test_the_list_of_unchecked_flags_is_a_list_of_names(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="unchecked_flags"):
        load(tmp_path, f"{FILE}unchecked_flags: 3\n")


def test_a_key_of_the_models_config_is_told_as_one_and_not_taken_for_its_opposite(
    tmp_path: Path,
) -> None:
    told = refused(tmp_path, "kv_cache_dtype: fp8", "sliding_window: 256")
    assert "a key of the model's config.json, and no flag of vLLM 0.32.0" in told
    assert "write `hf_overrides: {sliding_window: …}`" in told
    assert "disable_sliding_window" not in told


def test_a_dtype_by_another_name_is_told_by_the_engines_and_no_way_past_the_check(
    tmp_path: Path,
) -> None:
    told = refused(tmp_path, "kv_cache_dtype: fp8", "kv_cache_dtype: fp16")
    assert "did you mean 'float16', or 'auto' (the model's own type)?" in told
    assert "unchecked_flags" not in told
    # What resembles nothing may be another version's: then the way past it is told.
    told = refused(tmp_path, "kv_cache_dtype: fp8", "kv_cache_dtype: ternary")
    assert "unchecked_flags: [kv_cache_dtype]" in told


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kv_cache_dtype: fp8", "kv_cache_dtype: fp9", "knows no kv_cache_dtype 'fp9'"),
        ("max_model_len: 1024", "gpu_memory_utilization: 90", "did you mean 0.9?"),
        ("max_model_len: 1024", "gpu_memory_utilization: 0", "a share above 0, up to 1"),
        ("max_model_len: 1024", "gpu_memory_utilization: .nan", "gpu_memory_utilization"),
        ("max_model_len: 1024", "gpu_memory_utilization: '0.9'", "a share above 0, up to 1"),
        ("max_model_len: 1024", "cpu_offload_gb: -1", "a number from 0 up"),
        ("max_model_len: 1024", "enforce_eager: 1", "enforce_eager is a switch"),
        ("max_model_len: 1024", "headless: false", "headless can be set, not denied"),
        ("max_model_len: 1024", "swap_space: true", "vLLM 0.32.0 has no flag 'swap_space'"),
        ("max_model_len: 1024", "seed: true", "seed needs a value"),
        ("max_model_len: 1024", "no_enforce_eager: true", "enforce_eager: false"),
    ],
)
def test_values_that_the_engine_would_refuse_are_told_with_their_line(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    told = refused(tmp_path, old, new)
    assert says in told
    assert re.match(rf"{tmp_path}/demo\.yaml:(6|10) ", told)


def test_an_eviction_rule_is_read_where_it_is_written(tmp_path: Path) -> None:
    told = refused(
        tmp_path,
        "    kv_cache_dtype: fp8",
        '    env: {KVBENCH_EVICTION: "sink=3"}',
    )
    assert told.startswith(f"{tmp_path / 'demo.yaml'}:10 (variants.fp8.env.KVBENCH_EVICTION)")
    assert "did you mean 'sinks'?" in told


def test_flags_of_the_reference_engine_are_its_own_business(tmp_path: Path) -> None:
    text = FILE.replace("    kv_cache_dtype: fp8", "    cache: none").replace(
        "server:\n  max_model_len: 1024\n", "engine: reference\n"
    )
    assert load(tmp_path, text.replace("concurrency: 2", "concurrency: 1")).engine == "reference"


def test_what_a_variant_takes_back_is_not_judged() -> None:
    assert flag_fault("kv_cache_dtype", None) is None
    assert flag_fault("compilation_config.mode", 3) is None


@pytest.mark.parametrize("flag", [{"cudagraph": 1}, "{}", 0])
def test_flags_without_a_list_of_values_take_any(flag: Any) -> None:
    assert flag_fault("compilation_config", flag) is None


def test_the_list_is_of_the_version_that_is_pinned() -> None:
    shipped = json.loads(files("harness.data").joinpath("vllm_flags.json").read_text())
    pins = (ROOT / "requirements" / "constraints-cuda.txt").read_text()
    assert f"vllm=={shipped['vllm']}\n" in pins
    assert len(shipped["flags"]) > 250
