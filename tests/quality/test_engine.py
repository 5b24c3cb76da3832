"""Quality on the real engine: FP8 caches cost what they cost, and planted faults are found out."""

from __future__ import annotations

import pytest

from harness import store
from harness.analysis.quality import analyse_quality
from harness.analysis.quality_results import QualityAnalysis, VariantQuality
from harness.execute.local import run_scenario
from harness.execute.progress import Silent
from harness.scenario import load_scenario

#: The shortest that still tells the caches apart: about two and a half minutes on two cores. RoPE
#: with base 10 instead of 100,000 scrambles the prompt: the order of its tokens is lost.
SCENARIO = """
schema: 1
name: quality
model: smollm2-135m-instruct
baseline: bf16
server:
  max_model_len: 512
  gpu_memory_utilization: 0.30
  max_num_batched_tokens: 512
  max_num_seqs: 8
  enforce_eager: true
  enable_prefix_caching: false
variants:
  bf16: {kv_cache_dtype: auto}
  e4m3: {kv_cache_dtype: fp8_e4m3}
  e5m2: {kv_cache_dtype: fp8_e5m2}
  other weights: {load_format: dummy, seed: 7}
  scrambled: {hf_overrides: {rope_parameters: {rope_type: default, rope_theta: 10.0}}}
kv_budget: {equal_bytes: 117964800}
workloads:
  - {context_tokens: 32, output_tokens: 2, num_prompts: 1, concurrency: 1, warmup_requests: 0}
repeats: 1
quality:
  num_prompts: 6
  context_tokens: 256
  answer_tokens: 24
  needles: {context_tokens: [192, 384], depths: [0.5, 1]}
  judge: off
"""

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def quality(tmp_path_factory: pytest.TempPathFactory) -> QualityAnalysis:
    """One run for all tests of this file."""
    folder = tmp_path_factory.mktemp("quality")
    path = folder / "quality.yaml"
    path.write_text(SCENARIO)
    stored = run_scenario(
        load_scenario(path, "cpu"),
        root=folder / "results",
        command=["test"],
        progress=Silent(),
    )
    records = store.read_quality(stored)
    assert {p.head.status for p in records.passes} == {"sealed"}
    length = {prompt.index: prompt.context_tokens for prompt in records.prompts}
    assert all(
        len(prompt.prompt_token_ids) == (prompt.context_tokens or 0) for prompt in records.prompts
    )
    # The server counts as many as were sent.
    assert all(
        answer.prompt_tokens == length[answer.index]
        for record in records.passes
        for answer in record.answers
    )
    found = analyse_quality(records, "bf16")
    assert found is not None
    return found


def of(quality: QualityAnalysis, variant: str) -> VariantQuality:
    found = quality.of(variant)
    assert found is not None
    return found


def kl(one: VariantQuality) -> float:
    assert one.on_context is not None
    return one.on_context.kl.value


def test_coarser_caches_diverge_more_and_all_more_than_the_baseline_from_itself(
    quality: QualityAnalysis,
) -> None:
    e4m3, e5m2, floor = of(quality, "e4m3"), of(quality, "e5m2"), quality.floor
    assert floor is not None
    assert kl(floor) < 0.002
    # Measured: 0.0175 and 0.067 nats per token, 12 prompts of 384 tokens (docs/quality.md).
    assert kl(floor) < 0.005 < kl(e4m3) < kl(e5m2)
    assert kl(e5m2) > 2 * kl(e4m3)
    for one in (e4m3, e5m2):
        assert one.standing == "differs"
        assert one.kl_excess is not None
        assert one.kl_excess.low is not None
        assert one.kl_excess.low > 0


def test_an_fp8_cache_is_no_broken_text(quality: QualityAnalysis) -> None:
    for variant in ("e4m3", "e5m2"):
        gate = of(quality, variant).gate
        assert gate is not None
        assert gate.passed, gate.reasons


@pytest.mark.parametrize("fault", ["other weights", "scrambled"])
def test_a_planted_fault_is_caught_by_agreement_needles_and_gate_alike(
    quality: QualityAnalysis, fault: str
) -> None:
    other, base = of(quality, fault), quality.baseline_retrieval
    assert other.standing == "broken"
    assert kl(other) > 1.0
    assert other.kl_excess is not None
    assert other.kl_excess.low is not None
    assert other.kl_excess.low > 1.0
    assert base is not None
    assert base.needles_right >= 4
    assert other.retrieval is not None
    assert other.retrieval.needles_right == 0
    assert other.gate is not None
    assert any("perplexity" in why for why in other.gate.reasons)
