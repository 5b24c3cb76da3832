"""The scenario's key ``quality``: what may stand there, and what is refused before any start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.errors import ScenarioError
from harness.scenario import Scenario, expand, load_scenario

PLAIN: dict[str, Any] = {
    "schema": 1,
    "name": "q",
    "model": "m",
    "baseline": "a",
    "server": {"max_model_len": 1024},
    "variants": {"a": {}, "b": {"kv_cache_dtype": "fp8"}},
    "workloads": [{"context_tokens": 512, "output_tokens": 16, "num_prompts": 4, "concurrency": 2}],
}


def load(tmp_path: Path, **changes: Any) -> Scenario:
    path = tmp_path / "q.yaml"
    path.write_text(yaml.safe_dump({**PLAIN, **changes}))
    return load_scenario(path, "cpu")


@pytest.mark.parametrize("value", [None, False, "off"])
def test_quality_is_off_unless_asked_for(tmp_path: Path, value: object) -> None:
    assert load(tmp_path, quality=value).quality is None
    assert load(tmp_path).quality is None


@pytest.mark.parametrize("value", [True, "on"])
def test_on_takes_fifty_prompts_and_the_baseline_as_judge(tmp_path: Path, value: object) -> None:
    quality = load(tmp_path, quality=value).quality
    assert quality is not None
    assert quality.num_prompts == 50
    assert quality.judge is not None
    assert quality.judge.url is None


def test_the_judge_can_be_switched_off(tmp_path: Path) -> None:
    quality = load(tmp_path, quality={"judge": False}).quality
    assert quality is not None
    assert quality.judge is None


@pytest.mark.parametrize(
    ("quality", "fragment"),
    [
        ({"num_promts": 3}, "did you mean 'num_prompts'"),
        ({"judge": {"ur": "x"}}, "did you mean 'url'"),
        ({"judge": {"url": "http://j/v1"}}, "needs both url and model"),
        ({"needles": {"depths": [0.5]}}, "'context_tokens' is missing"),
        (
            {"needles": {"context_tokens": [64], "depths": [1.5]}},
            "entry 0 of depths must be at most 1 (given: 1.5)",
        ),
        # 1000 + 128 tokens in 1024.
        ({"context_tokens": 1000}, "takes 1128 tokens and does not fit max_model_len 1024"),
        ({"needles": {"context_tokens": [1020]}}, "takes 1036 tokens"),
    ],
)
def test_a_fault_is_named_with_its_place(tmp_path: Path, quality: Any, fragment: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, quality=quality)
    assert fragment in str(caught.value)
    assert "q.yaml" in str(caught.value)


def test_a_baseline_of_random_weights_has_no_quality_to_lose(tmp_path: Path) -> None:
    server = {"max_model_len": 1024, "load_format": "dummy"}
    with pytest.raises(ScenarioError, match="random"):
        load(tmp_path, quality=True, server=server)


def test_quality_changes_no_trial_and_so_no_stored_result(tmp_path: Path) -> None:
    plain = [trial.trial_id for trial in expand(load(tmp_path))]
    assert [trial.trial_id for trial in expand(load(tmp_path, quality=True))] == plain
