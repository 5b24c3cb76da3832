"""Quality on the real engine: FP8 caches cost what they cost, and planted faults are found out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import store
from harness.analysis.quality import analyse_quality
from harness.analysis.quality_results import QualityAnalysis, VariantQuality

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def quality(real_bench: dict[str, Any]) -> QualityAnalysis:
    """The quality part of the one real run (``tests/real_bench.py``)."""
    records = store.read_quality(Path(real_bench["run"]))
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
    found = analyse_quality(records, "fp16")
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
    # On a CPU fp8 is e4m3.
    e4m3, e5m2, floor = of(quality, "fp8"), of(quality, "e5m2"), quality.floor
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
    for variant in ("fp8", "e5m2"):
        gate = of(quality, variant).gate
        assert gate is not None
        assert gate.passed, gate.reasons


@pytest.mark.parametrize("fault", ["random", "scrambled"])
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
