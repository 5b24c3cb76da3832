from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ScenarioError
from harness.scenario import Scenario, expand, load_scenario, reference_options

ROOT = Path(__file__).resolve().parents[2]
TEXT = """\
schema: 1
name: demo
engine: reference
model: somewhere/model
baseline: growing
server: {dtype: float32}
variants:
  growing: {cache: growing}
  static: {cache: static, max_cache_len: 4k}
workloads:
  - {context_tokens: 20, output_tokens: 4, num_prompts: 2, concurrency: 1}
profiles: {cpu: {}}
"""


def load(tmp_path: Path, *overrides: str) -> Scenario:
    path = tmp_path / "demo.yaml"
    path.write_text(TEXT)
    return load_scenario(path, "cpu", overrides=overrides)


def test_options_are_those_of_server_and_variant_together(tmp_path: Path) -> None:
    trials = {trial.variant: trial for trial in expand(load(tmp_path))}
    options = reference_options(trials["static"].flags)
    assert (options.cache, options.max_cache_len, options.dtype) == ("static", 4096, "float32")
    assert trials["static"].engine == "reference"


def test_a_budget_is_left_to_the_engine_without_being_said(tmp_path: Path) -> None:
    assert load(tmp_path).kv_budget.mode == "engine"


def test_another_engine_makes_another_trial_id(tmp_path: Path) -> None:
    # The same words mean something else to a server, so results must never be shared.
    here = {trial.trial_id for trial in expand(load(tmp_path))}
    there = {
        trial.trial_id
        for trial in expand(load(tmp_path, "engine=vllm", "unchecked_flags=[cache, max_cache_len]"))
    }
    assert not here & there


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("variants.growing.kv_cache_dtype=fp8", "no option of the reference engine"),
        ("variants.growing.cache=paged", "variants.growing.cache"),
        ("variants.growing.max_cache_len=64", "give both or neither"),
        ("variants.static.max_cache_len=16", "can't hold requests of 24"),
        ("variants.static.max_cache_len=null", "give both or neither"),
        ("variants.growing.emulate=preallocation", "nothing needs emulation"),
        ("server.gpu_memory_utilization=0.9", "no option of the reference engine"),
        ("kv_budget={equal_bytes: 1GiB}", "no pool to size"),
        ("workloads.0.concurrency=2", "one request at a time"),
        ("workloads.0.shared_prefix_tokens=8", "keeps nothing between requests"),
        ("quality=true", "reference engine is none"),
        ("engine=sglang", "'vllm' or 'reference'"),
    ],
)
def test_what_the_reference_engine_can_not_do_is_refused_by_name(
    tmp_path: Path, override: str, told: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, override)
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["cache_vs_no_cache", "static_vs_growing_cache"])
@pytest.mark.parametrize("profile", ["cpu", "cuda"])
def test_the_shipped_reference_scenarios_load_in_both_profiles(name: str, profile: str) -> None:
    found = load_scenario(ROOT / "scenarios" / f"{name}.yaml", profile)
    assert found.engine == "reference"
    assert len(found.variants) == 2
