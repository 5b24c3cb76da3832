"""The stored answers of a run → everything that is said about its answer quality.

Method: the baseline's first pass is the reference; its second pass (another server start, other
batches and order) is the noise floor; each variant is held against both. A variant differs if the
95 % interval of its divergence's excess over the floor's, paired by prompt, lies above zero, or if
its exact-match rate lies below the floor's interval; else it is called indistinguishable. Fewer
than five prompts give no interval and no claim, nor does a floor that was not measured to its end.
The sanity gate comes first: broken text is broken, whatever else is measured.

Not covered: judges (``judging``), words and pictures (``report``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.analysis.agreement import (
    Place,
    agreement,
    buckets,
    by_prompt,
    excess,
    free_running,
    paired,
    trend,
)
from harness.analysis.judging import judge_outcome
from harness.analysis.quality_results import (
    Agreement,
    PolicyQuality,
    QualityAnalysis,
    Standing,
    VariantQuality,
)
from harness.analysis.results import Headline
from harness.analysis.retrieval import NEEDLE_TASKS, retrieval
from harness.analysis.sanity import gate
from harness.record import PassRecord, QualityAnswer, QualityPrompt, QualityRecords
from harness.scenario.schema import tail_start

#: Said of every finding of a variant whose text is broken.
GATE_CODE = "quality_gate"

METHODS: Mapping[str, str] = {
    "teacher_forced": "the baseline's greedy answers, and the text before them, scored token by "
    "token by every server (prompt_logprobs, the 20 likeliest tokens); up to 256 places of the "
    "context, evenly spread, and the whole answer are kept",
    "kl": "KL(baseline ‖ variant) in nats per token over the union of both lists: tokens that both "
    "list stand alone, those that one lists and the tail are one cell each, with the unknown part "
    "set so that the divergence is least: a lower bound, zero for equal lists; 95 % interval from "
    "resampled prompts, none below 5",
    "top1_agreement": "share of positions at which both find the same token likeliest",
    "free_running": "greedy answers of the variant's own, token by token beside the baseline's",
    "noise_floor": "the baseline against itself: reversed order, several requests in a batch and, "
    "with two repeats or more, another server start; a variant within it is indistinguishable",
    "retrieval": "an answer is right if it contains the expected text as a word (for numbers: the "
    "first number in it)",
    "sanity_gate": "fails on text that is broken beside the baseline's (empty, repetitive, "
    "perplexity over 1.5×, top-1 agreement under 50 %, needles lost), and on the engine's warning "
    "of uncalibrated KV scales",
}


def has_random_weights(flags: Mapping[str, Any]) -> bool:
    """Whether these server flags fill the model with random weights, whatever its shape."""
    return flags.get("load_format") == "dummy"


def writes_no_text(flags: Mapping[str, Any]) -> bool:
    """Whether these server flags reshape the model, so that its weights can only be random.

    No checkpoint has that shape: memory and speed are true, and there was no text to lose. Random
    weights in the checkpoint's own shape are a fault like any other, which the gate has to find.
    """
    return has_random_weights(flags) and bool(flags.get("hf_overrides"))


def analyse_quality(
    records: QualityRecords, baseline: str, random_weights: Collection[str] = ()
) -> QualityAnalysis | None:
    """Say what the stored answers show; None if none were asked for.

    ``random_weights`` names the variants of which ``writes_no_text`` holds: whatever they answered
    is held against nobody.
    """
    reference = next((p for p in records.passes if p.head.kind == "reference"), None)
    if reference is None:
        return None
    others = sorted(
        (
            p
            for p in records.passes
            if p.head.kind not in ("reference", "kvpress") and p.head.variant not in random_weights
        ),
        key=lambda p: (p.head.kind != "self", p.head.launches, p.head.variant),
    )
    base_found = retrieval(records.prompts, reference.answers)
    seen = [paired(reference.scores, record.scores) for record in others]
    made = [
        _held(record, reference, records.prompts, places)
        for record, places in zip(others, seen, strict=True)
    ]
    texts = _texts(records.prompts, reference.answers)
    return QualityAnalysis(
        baseline=baseline,
        prompts=sum(prompt.task not in NEEDLE_TASKS for prompt in records.prompts),
        tasks=_counts([prompt.task for prompt in records.prompts]),
        context_tokens=tuple(
            sorted({p.context_tokens for p in records.prompts if p.context_tokens is not None})
        ),
        reference_status=reference.head.status,
        reference_reason=reference.head.reason,
        baseline_retrieval=base_found,
        baseline_gate=gate(texts, (), log_warnings=reference.head.log_warnings) if texts else None,
        variants=_against_floor(made, seen),
        judges=tuple(judge_outcome(judge, records) for judge in records.judges),
        left_out=reference.head.left_out,
        methods=METHODS,
        reference_launches=reference.head.launches,
        textless=tuple(sorted(random_weights)),
        pressed=tuple(
            _policy_quality(record, reference)
            for record in records.passes
            if record.head.kind == "kvpress"
        ),
    )


def _policy_quality(record: PassRecord, reference: PassRecord) -> PolicyQuality:
    # A policy that was measured again left its earlier scores in place: the last ones count.
    last = {score.index: score for score in record.scores}
    places = paired(reference.scores, tuple(last.values()))
    return PolicyQuality(
        variant=record.head.variant,
        status=record.head.status,
        reason=record.head.reason,
        on_tail=_on_tail(places, reference),
        on_answers=agreement([place for place in places if place.in_answer]),
    )


def _on_tail(places: Sequence[Place], reference: PassRecord) -> Agreement | None:
    """Agreement on the last quarter of each prompt, its first token aside (``kvpress_trials``)."""
    begins = {score.index: tail_start(score.prompt_length) for score in reference.scores}
    return agreement([p for p in places if not p.in_answer and p.position > begins[p.prompt]])


def gated(headline: Headline, quality: QualityAnalysis | None) -> Headline:
    """The headline with every finding of a variant whose text is broken turned invalid."""
    if quality is None:
        return headline
    broken = set(gate_failures(quality))
    findings = tuple(
        replace(finding, verdict="invalid", codes=(*finding.codes, GATE_CODE))
        if finding.variant in broken
        else finding
        for finding in headline.findings
    )
    return replace(headline, findings=findings)


def gate_failures(quality: QualityAnalysis) -> Mapping[str, tuple[str, ...]]:
    """Variants whose text fails the sanity gate, with the reasons."""
    return {
        one.variant: one.gate.reasons
        for one in quality.variants
        if one.kind == "variant" and one.gate is not None and not one.gate.passed
    }


def _counts(names: Sequence[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def _texts(
    prompts: Sequence[QualityPrompt], answers: Sequence[QualityAnswer]
) -> list[QualityAnswer]:
    """The answers of some length: those to anything but needles."""
    long = {prompt.index for prompt in prompts if prompt.task not in NEEDLE_TASKS}
    return [answer for answer in answers if answer.index in long and answer.error is None]


def _held(
    record: PassRecord,
    reference: PassRecord,
    prompts: Sequence[QualityPrompt],
    places: Sequence[Place],
) -> VariantQuality:
    """One pass beside the reference, the noise floor aside."""
    head = record.head
    on_answers = agreement([place for place in places if place.in_answer])
    on_context = agreement([place for place in places if not place.in_answer])
    texts, base_texts = (_texts(prompts, side.answers) for side in (record, reference))
    found = retrieval(prompts, record.answers), retrieval(prompts, reference.answers)
    known = bool(texts or places)
    return VariantQuality(
        variant=head.variant,
        kind="self" if head.kind == "self" else "variant",
        status=head.status,
        reason=head.reason,
        launches=head.launches,
        concurrency=head.concurrency,
        wall_s=head.wall_s,
        errors=_errors(record),
        on_answers=on_answers,
        on_context=on_context,
        by_position=buckets(places),
        trend=trend(places),
        free=free_running(base_texts, texts),
        retrieval=found[0],
        gate=gate(
            texts, base_texts, on_context, on_answers, found, head.log_warnings, record.scores
        )
        if known
        else None,
        on_tail=_on_tail(places, reference),
    )


def _errors(record: PassRecord) -> int:
    """Prompts that got no answer or no score in the end."""
    bad = 0
    for lines in (record.answers, record.scores):
        good = {line.index for line in lines if line.error is None}
        bad += len({line.index for line in lines} - good)
    return bad


def _against_floor(
    made: Sequence[VariantQuality], seen: Sequence[Sequence[Place]]
) -> tuple[VariantQuality, ...]:
    """Each variant's excess over the baseline against itself, and where that leaves it."""
    floor, floor_sums = None, {}
    for one, places in zip(made, seen, strict=True):
        if one.kind == "self" and one.status == "sealed":
            floor, floor_sums = one, by_prompt(places)
    stood = []
    for one, places in zip(made, seen, strict=True):
        if one.kind == "variant":
            over = excess(by_prompt(places), floor_sums) if floor_sums else None
            held = replace(one, kl_excess=over)
            stood.append(replace(held, standing=_standing(held, floor)))
        else:
            stood.append(one)
    return tuple(stood)


def _standing(one: VariantQuality, floor: VariantQuality | None) -> Standing:
    if one.gate is None:
        return "not measured"
    if not one.gate.passed:
        return "broken"
    if one.on_context is None and one.on_answers is None:
        return "not measured"
    if one.kl_excess is None or floor is None:
        return "no noise floor"
    if one.kl_excess.low is None:
        return "too few prompts"
    if one.kl_excess.low > 0.0:
        return "differs"
    return "differs" if _matches_less(one, floor) else "indistinguishable"


def _matches_less(one: VariantQuality, floor: VariantQuality) -> bool:
    if one.free is None or floor.free is None or floor.free.exact_match.low is None:
        return False
    return one.free.exact_match.value < floor.free.exact_match.low
