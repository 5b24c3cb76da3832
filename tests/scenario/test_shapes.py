"""What a scenario may say of requests that differ, of emulation, and of claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ScenarioError
from harness.scenario import expand, load_scenario
from tests.scenario.test_load import GOOD, load, replaced

SIZE = "context_tokens: 9, output_tokens: 1, num_prompts: 4, concurrency: 1, "
LOAD = "  - {context_tokens: 512, output_tokens: 16, num_prompts: 50, concurrency: [1, 4]}"


def with_load(text: str) -> str:
    return replaced(LOAD, f"  - {{{text}}}")


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        (
            SIZE + "turns: 3",
            "multiple of turns",
            "(workloads.0)",
        ),
        (
            SIZE + "shared_prefix_tokens: 9",
            "a part of its own",
            "(workloads.0)",
        ),
        (
            SIZE + "turns: 2, shared_prefix_tokens: 3",
            "can't be combined",
            "(workloads.0)",
        ),
        (
            SIZE + "length_mix: {context_median: 10}",
            "above the longest",
            "(workloads.0)",
        ),
        (
            SIZE + "length_mix: {median: 3}",
            "no key 'median'|'context_median' is missing",
            "(workloads.0.length_mix",
        ),
    ],
)
def test_a_shape_that_can_not_be_is_refused_at_its_place(
    tmp_path: Path, text: str, message: str, where: str
) -> None:
    with pytest.raises(ScenarioError, match=message) as caught:
        load(tmp_path, with_load(text))
    assert where in (caught.value.where or "")


def test_shapes_stand_in_the_label_and_change_the_trials_identity(tmp_path: Path) -> None:
    size = "context_tokens: 64, output_tokens: 8, num_prompts: 6, concurrency: 2"
    plain, shared, turns, mixed = (
        load(tmp_path, with_load(f"{size}{more}"))
        for more in (
            "",
            ", shared_prefix_tokens: 32",
            ", turns: 2",
            ", length_mix: {context_median: 9}",
        )
    )
    labels = [s.workloads[0].label for s in (plain, shared, turns, mixed)]
    assert labels[0].endswith("concurrency 2")
    assert labels[1].endswith(", 32 shared")
    assert labels[2].endswith(", 2 turns")
    assert labels[3].endswith(", mixed (median 9)")
    ids = {expand(s)[0].trial_id for s in (plain, shared, turns, mixed)}
    assert len(ids) == 4


def test_a_variant_may_emulate_and_name_a_checkpoint_and_neither_is_a_flag(tmp_path: Path) -> None:
    text = replaced(
        "  b: {kv_cache_dtype: fp8, env: {VLLM_FLAG: 1}}",
        "  b: {emulate: preallocation, model: other/checkpoint}",
    )
    first, second, *_ = (t for t in expand(load(tmp_path, text)) if t.workload.concurrency == 1)
    assert (first.stamp, first.model) == ("measured", "some/model")
    assert (second.stamp, second.model, second.flags.get("emulate")) == (
        "emulated",
        "other/checkpoint",
        None,
    )


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("{emulate: paging}", "preallocation"),
        ("{emulate: preallocation, max_num_seqs: 5}", "works out max_num_seqs itself"),
    ],
)
def test_an_emulation_that_is_none_is_refused(tmp_path: Path, variant: str, message: str) -> None:
    text = replaced("  b: {kv_cache_dtype: fp8, env: {VLLM_FLAG: 1}}", f"  b: {variant}")
    with pytest.raises(ScenarioError, match=message) as caught:
        load(tmp_path, text)
    assert "variants.b" in (caught.value.where or "")


def test_claims_are_those_of_the_chapter(tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(GOOD + "claims: [C2, C11]\n")
    assert load_scenario(path, "cuda").claims == ("C2", "C11")
    path.write_text(GOOD + "claims: [C16]\n")
    with pytest.raises(ScenarioError):
        load_scenario(path, "cuda")
