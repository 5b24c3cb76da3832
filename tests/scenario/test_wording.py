"""What a wrong key or value is told as: the key, its limit, and what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ScenarioError
from harness.scenario import load_scenario
from harness.scenario.wording import meant

FILE = """\
schema: 1
name: demo
baseline: a
model: some/model
variants:
  a: {}
workloads:
  - context_tokens: 512
    output_tokens: 16
    num_prompts: 4
    concurrency: 2
repeats: 3
"""


def told(folder: Path, old: str, new: str) -> str:
    assert old in FILE
    path = folder / "demo.yaml"
    path.write_text(FILE.replace(old, new), encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, profile="cpu")
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "wrong", "key"),
    [
        ("context_tokens", "input_tokens", "context_tokens"),
        ("context_tokens", "contxt_tokens", "context_tokens"),
        ("output_tokens", "max_tokens", "output_tokens"),
        ("num_prompts", "num_prmpts", "num_prompts"),
    ],
)
def test_a_misspelt_key_that_is_also_missing_is_told_as_misspelt(
    tmp_path: Path, old: str, wrong: str, key: str
) -> None:
    text = told(tmp_path, f"{old}:", f"{wrong}:")
    assert f"there is no key {wrong!r} here" in text
    assert f"did you mean {key!r}?; missing here: {key}" in text
    assert "legal: name, context_tokens, output_tokens" in text


def test_a_key_that_is_missing_with_nothing_odd_beside_it_is_told_as_missing(
    tmp_path: Path,
) -> None:
    text = told(tmp_path, "    num_prompts: 4\n", "")
    assert "the key 'num_prompts' is missing" in text


def test_a_name_that_others_use_is_no_hint_where_the_key_is_not_legal() -> None:
    assert meant("rate", ("ttft_s", "tpot_s"), ()) is None
    assert meant("ttft", ("ttft_s", "tpot_s"), ()) == "did you mean 'ttft_s'?"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("repeats: 3", "repeats: 0", "repeats must be at least 1 (given: 0)"),
        ("repeats: 3", "repeats: 5000", "repeats must be at most 1000 (given: 5000)"),
        ("repeats: 3", "repeats: three", "repeats must be a whole number (given: 'three')"),
        ("repeats: 3", "slo: 3", "slo must be a mapping (given: 3)"),
        ("repeats: 3", "engine: sglang", "engine must be 'vllm' or 'reference'"),
        (
            "    concurrency: 2",
            "    concurrency: 2\n    shared_prefix_tokens: 600",
            "shared_prefix_tokens is 600, and prompts have 512 tokens: at most 511 can be shared",
        ),
    ],
)
def test_a_value_out_of_range_is_told_with_its_limit_and_not_in_the_words_of_a_library(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    text = told(tmp_path, old, new)
    assert says in text
    assert "Input should" not in text
