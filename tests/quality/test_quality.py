"""Passes held against one another: what differs, what is noise, what is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.quality import analyse_quality, gate_failures
from harness.analysis.quality_results import VariantQuality
from harness.record import QualityRecords
from tests.quality.toy import Toy
from tests.quality.toy_records import toy_records


def fp8(variant: Toy, **more: object) -> VariantQuality:
    quality = analyse_quality(toy_records(variant, **more), "fp16")  # type: ignore[arg-type]
    assert quality is not None
    found = quality.of("fp8")
    assert found is not None
    return found


def test_the_same_model_is_indistinguishable_and_a_slightly_noisy_one_differs() -> None:
    twin, noisy, noisier = fp8(Toy()), fp8(Toy(noise=0.2)), fp8(Toy(noise=0.8))
    assert twin.standing == "indistinguishable"
    assert twin.on_context is not None
    assert twin.on_context.kl.value == 0
    assert noisy.standing == noisier.standing == "differs"
    assert noisy.on_context is not None
    assert noisier.on_context is not None
    assert 0 < noisy.on_context.kl.value < noisier.on_context.kl.value
    assert noisy.gate is not None
    assert noisy.gate.passed


@pytest.mark.parametrize("fault", [Toy(weights=1), Toy(scramble=1)])
def test_planted_faults_are_caught_by_agreement_needles_and_gate_alike(fault: Toy) -> None:
    broken = fp8(fault)
    assert broken.standing == "broken"
    assert broken.kl_excess is not None
    assert broken.kl_excess.low is not None
    assert broken.kl_excess.low > 1.0
    assert broken.retrieval is not None
    assert (broken.retrieval.needles_right, broken.retrieval.needles_asked) == (0, 4)
    assert broken.gate is not None
    assert any("perplexity" in why for why in broken.gate.reasons)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [("empty", "are empty"), ("loop", "repetition"), ("garbled", "garbled")],
)
def test_broken_text_fails_the_gate(text: str, fragment: str) -> None:
    broken = fp8(Toy(text=text))
    assert broken.standing == "broken"
    assert broken.gate is not None
    assert fragment in " ".join(broken.gate.reasons)


def test_without_a_floor_no_difference_is_claimed() -> None:
    assert fp8(Toy(noise=0.4), with_floor=False).standing == "no noise floor"


def test_only_broken_variants_are_gate_failures() -> None:
    for toy, names in ((Toy(noise=0.4), set()), (Toy(weights=1), {"fp8"})):
        quality = analyse_quality(toy_records(toy), "fp16")
        assert quality is not None
        assert set(gate_failures(quality)) == names


def test_random_weights_write_no_text_so_no_gate_judges_it() -> None:
    records = toy_records(Toy(weights=1))
    judged = analyse_quality(records, "fp16")
    assert judged is not None
    assert set(gate_failures(judged)) == {"fp8"}
    apart = analyse_quality(records, "fp16", {"fp8"})
    assert apart is not None
    assert not gate_failures(apart)
    assert apart.of("fp8") is None
    assert apart.textless == ("fp8",)


def test_nothing_stored_is_no_quality() -> None:
    assert analyse_quality(QualityRecords(), "fp16") is None


def altered(kind: str, **changes: object) -> VariantQuality:
    """The noisy variant, after one pass was altered."""
    stored = toy_records(Toy(noise=0.4))
    passes = tuple(
        replace(p, **changes) if p.head.kind == kind else p  # type: ignore[arg-type]
        for p in stored.passes
    )
    quality = analyse_quality(replace(stored, passes=passes), "fp16")
    assert quality is not None
    found = quality.of("fp8")
    assert found is not None
    return found


def test_a_floor_that_was_not_measured_to_its_end_is_none() -> None:
    head = next(p.head for p in toy_records(Toy()).passes if p.head.kind == "self")
    assert altered("self").standing == "differs"
    assert altered("self", head=replace(head, status="failed")).standing == "no noise floor"


def test_few_prompts_give_no_interval_and_no_claim() -> None:
    scores = next(p.scores for p in toy_records(Toy(noise=0.4)).passes if p.head.kind == "variant")
    assert altered("variant", scores=scores[:5]).standing == "differs"
    few = altered("variant", scores=scores[:4])
    assert few.kl_excess is not None
    assert few.kl_excess.value > 0
    assert few.standing == "too few prompts"


def test_answers_without_a_score_are_not_called_noise_or_difference() -> None:
    assert altered("variant", scores=()).standing == "not measured"


def test_whether_the_baseline_was_started_anew_is_told_from_its_launches() -> None:
    stored = toy_records(Toy())
    quality = analyse_quality(stored, "fp16")
    assert quality is not None
    assert not quality.floor_restarted
    passes = tuple(
        replace(p, head=replace(p.head, launches=(3,))) if p.head.kind == "self" else p
        for p in stored.passes
    )
    quality = analyse_quality(replace(stored, passes=passes), "fp16")
    assert quality is not None
    assert quality.floor_restarted
