"""A judge's verdicts → first whether the judge is any good, then what it says of the variants.

Method: a control counts as right only if it is right in both orders. A judge is reliable if it
gets at least 80 % of each kind of control right, of at least three, and if its verdict follows the
position in at most 20 % of the pairs that it did judge twice. Otherwise its verdicts are withheld.
A pair is won by the answer preferred in both orders; anything else is a tie. The interval of
(wins − losses) / pairs is that of Agresti and Min (2005) for matched pairs: half a pair is added to
each of the four cells, which keeps it honest for few pairs. Non-inferior: its lower end lies above
minus the margin.

Not covered: which pairs were made (``harness.workload.judge_pairs``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from harness.analysis.quality_results import ControlScore, JudgedVariant, JudgeOutcome, Range
from harness.analysis.retrieval import NEEDLE_TASKS
from harness.analysis.series import total
from harness.analysis.stats import net_range, wilson
from harness.record import Judgement, JudgeRecord, QualityRecords
from harness.units import Fraction, format_percent
from harness.workload.judge_pairs import same_text

CONTROLS: tuple[Literal["identical", "degraded", "known"], ...] = ("identical", "degraded", "known")
CONTROL_SHARE: Fraction = 0.80
FEWEST_OF_A_KIND = 3
POSITION_BIAS: Fraction = 0.20

Preferred = Literal["one", "other", "tie"]


def judge_outcome(judge: JudgeRecord, records: QualityRecords) -> JudgeOutcome:
    """Score one judge on its controls, then, if it passed, the variants by it."""
    latest = {(j.pair_id, j.order): j for j in judge.judgements}
    pairs = _by_pair(list(latest.values()))
    controls = tuple(_control(kind, pairs) for kind in CONTROLS)
    bias = _position_bias(pairs)
    because = _faults(controls, bias)
    head = judge.head
    return JudgeOutcome(
        judge_id=head.judge_id,
        model=head.model,
        is_self=head.is_self,
        status=head.status,
        reason=head.reason,
        reliable=not because,
        unreliable_because=because,
        controls=controls,
        position_bias=bias,
        malformed=sum(j.malformed for j in judge.judgements),
        questions=len(judge.judgements),
        lost=sum(j.verdict is None for j in latest.values()),
        prompt_tokens=total(j.prompt_tokens for j in judge.judgements),
        output_tokens=total(j.output_tokens for j in judge.judgements),
        wall_s=head.wall_s,
        margin=head.margin,
        variants=_variants(pairs, records, head.margin, reliable=not because),
    )


def _by_pair(judgements: Sequence[Judgement]) -> dict[str, list[Judgement]]:
    pairs: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        pairs.setdefault(judgement.pair_id, []).append(judgement)
    return pairs


def preferred(judgement: Judgement) -> Preferred | None:
    """Which answer a verdict is for, whatever the order it was shown in."""
    if judgement.verdict in (None, "tie"):
        return "tie" if judgement.verdict == "tie" else None
    first_shown = judgement.verdict == "A"
    return "one" if first_shown == (judgement.order == "ab") else "other"


def _both(pair: Sequence[Judgement]) -> tuple[Preferred, Preferred] | None:
    """What a pair's two orders say; None unless both were judged."""
    said = {j.order: preferred(j) for j in pair}
    one, other = said.get("ab"), said.get("ba")
    return None if one is None or other is None else (one, other)


def _control(
    kind: Literal["identical", "degraded", "known"], pairs: Mapping[str, Sequence[Judgement]]
) -> ControlScore:
    """A control without a usable verdict counts as asked and not right."""
    wanted = "tie" if kind == "identical" else "one"
    own = [_both(pair) for pair in pairs.values() if pair[0].kind == kind]
    return ControlScore(kind, len(own), sum(said == (wanted, wanted) for said in own))


def _position_bias(pairs: Mapping[str, Sequence[Judgement]]) -> Range | None:
    """Share of pairs for which the same place was preferred in both orders."""
    said = [both for pair in pairs.values() if (both := _both(pair)) is not None]
    if not said:
        return None
    biased = sum(both in (("one", "other"), ("other", "one")) for both in said)
    return Range(biased / len(said), *wilson(biased, len(said)))


def _faults(controls: Sequence[ControlScore], bias: Range | None) -> tuple[str, ...]:
    faults = [_fault(control) for control in controls]
    if bias is not None and bias.value > POSITION_BIAS:
        faults.append(
            f"in {format_percent(bias.value, 0)} of the pairs it preferred the same place, A or B, "
            "whichever answer stood there (at most "
            f"{format_percent(POSITION_BIAS, 0)} is allowed)"
        )
    return tuple(fault for fault in faults if fault is not None)


def _fault(control: ControlScore) -> str | None:
    names = {
        "identical": "it called two identical answers a tie",
        "degraded": "it preferred an answer to a spoiled copy of it",
        "known": "it preferred the right answer to a wrong one",
    }
    if control.asked < FEWEST_OF_A_KIND:
        return f"only {control.asked} {control.kind} controls could be put to it"
    if (control.share or 0.0) >= CONTROL_SHARE:
        return None
    return f"{names[control.kind]} in {control.right} of {control.asked} controls"


def _variants(
    pairs: Mapping[str, Sequence[Judgement]],
    records: QualityRecords,
    margin: Fraction,
    *,
    reliable: bool,
) -> tuple[JudgedVariant, ...]:
    made = []
    for record in records.passes:
        if record.head.kind == "variant":
            variant = record.head.variant
            own = [p for p in pairs.values() if p[0].kind == "real" and p[0].variant == variant]
            made.append(_variant(variant, own, _identical(variant, records), margin, reliable))
    return tuple(made)


def _identical(variant: str, records: QualityRecords) -> int:
    """How many of the variant's answers read as the baseline's do."""
    long = {prompt.index for prompt in records.prompts if prompt.task not in NEEDLE_TASKS}
    texts = {
        record.head.kind if record.head.kind == "reference" else record.head.variant: {
            a.index: a.text for a in record.answers if a.error is None and a.index in long
        }
        for record in records.passes
        if record.head.kind != "self"
    }
    base, mine = texts.get("reference", {}), texts.get(variant, {})
    return sum(same_text(base[k] or "", mine[k] or "") for k in base.keys() & mine.keys())


def _variant(
    variant: str,
    pairs: Sequence[Sequence[Judgement]],
    identical: int,
    margin: Fraction,
    reliable: bool,
) -> JudgedVariant:
    said = [both for pair in pairs if (both := _both(pair)) is not None]
    count, unusable = len(said) + identical, len(pairs) - len(said)
    if not reliable or not count:
        return JudgedVariant(
            variant, count, identical, unusable, None, None, None, None, non_inferior=None
        )
    wins, losses = said.count(("other", "other")), said.count(("one", "one"))
    net = net_range(wins, losses, count)
    return JudgedVariant(
        variant=variant,
        pairs=count,
        identical=identical,
        unusable=unusable,
        wins=wins,
        ties=count - wins - losses,
        losses=losses,
        net=net,
        non_inferior=net.low is not None and net.low > -margin,
    )
