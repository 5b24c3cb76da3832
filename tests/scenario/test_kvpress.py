"""Policies of kvpress as variants: what may be said of them, and the trials they become."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from harness.engines.kvpress_env import child
from harness.errors import ScenarioError
from harness.scenario import Kvpress, Scenario, expand, launch_groups, load_scenario, tail_start

TEXT = """\
schema: 1
name: demo
model: somewhere/model
baseline: full
server: {max_model_len: 1024}
env: {A: "1"}
variants:
  full: {}
  snap: {kvpress: {press: snapkv, compression_ratio: 0.5}}
  bare: {kvpress: {press: none}}
workloads:
  - {context_tokens: 64, output_tokens: 4, num_prompts: 2, concurrency: 2}
  - {context_tokens: 32, output_tokens: 4, num_prompts: 2, concurrency: 2}
repeats: 3
quality: {num_prompts: 7, context_tokens: 201}
profiles: {cpu: {}}
"""


def load(tmp_path: Path, *overrides: str) -> Scenario:
    path = tmp_path / "demo.yaml"
    path.write_text(TEXT)
    return load_scenario(path, "cpu", overrides=overrides)


def test_policies_are_measured_once_behind_the_first_repeat_by_one_process(
    tmp_path: Path,
) -> None:
    groups = launch_groups(expand(load(tmp_path)))
    variants = [[trial.variant for trial in group] for group in groups]
    assert variants == [["full"] * 2, ["snap", "bare"], ["full"] * 2, ["full"] * 2]
    assert [group[0].launch for group in groups] == [0, 1, 2, 3]


def test_added_repeats_change_no_trial_that_was_run(tmp_path: Path) -> None:
    three = [trial.trial_id for trial in expand(load(tmp_path))]
    four = [trial.trial_id for trial in expand(load(tmp_path, "repeats=4"))]
    assert four[: len(three)] == three


def test_none_of_the_servers_settings_reach_them(tmp_path: Path) -> None:
    snap = next(trial for trial in expand(load(tmp_path)) if trial.variant == "snap")
    assert snap.engine == "kvpress"
    assert snap.flags == {"press": "snapkv", "compression_ratio": 0.5}
    assert snap.env == {}


def test_their_load_is_the_quality_prompts_cut_at_three_quarters(tmp_path: Path) -> None:
    """201 tokens: a quarter is 50, so 151 are prefilled and 50 scored behind them."""
    load_ = next(trial for trial in expand(load(tmp_path)) if trial.variant == "bare").workload
    assert tail_start(201) == 151
    assert (load_.context_tokens, load_.output_tokens, load_.num_prompts) == (151, 50, 7)


def test_a_server_is_asked_about_all_other_variants(tmp_path: Path) -> None:
    assert load(tmp_path).served == ("full",)


def test_policies_are_those_that_the_child_knows() -> None:
    assert set(get_args(Kvpress.model_fields["press"].annotation)) == set(child.NAMES)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("variants.snap.kvpress.press=h2o", "variants.snap.kvpress"),
        ("variants.snap.kvpress.compression_ratio=1", "variants.snap.kvpress"),
        ("variants.snap.kvpress.compression_ratio=0", "left out for none"),
        ("variants.bare.kvpress.compression_ratio=0.5", "left out for none"),
        ("variants.snap.kv_cache_dtype=fp8", "kvpress runs on transformers"),
        ('variants.snap.env={"A": "2"}', "kvpress runs on transformers"),
        ("baseline=bare", "no baseline of its own"),
        ("engine=reference", "beside servers that kvbench launches"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(
    tmp_path: Path, override: str, told: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, override)
    assert told in str(caught.value)
