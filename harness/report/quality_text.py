"""Answer quality in words: what stands in the opening, the section and the terminal.

Method: one rule per standing of a variant (broken, differs, indistinguishable, no noise floor, not
measured) and per judge (not reliable, reliable). A difference is claimed only beyond the noise
floor; a judge that failed its controls is called so and its verdicts are not written. Not covered:
tables and charts (``quality``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis.judging import CONTROL_SHARE
from harness.analysis.quality_results import (
    ControlScore,
    JudgedVariant,
    JudgeOutcome,
    QualityAnalysis,
    Range,
    Standing,
    VariantQuality,
)
from harness.scenario import slugify
from harness.units import (
    DASH,
    counted,
    format_count,
    format_duration,
    format_percent,
    format_significant,
    listed,
)

KINDS = {
    "identical": "identical answers called a tie",
    "degraded": "a spoiled answer lost",
    "known": "the right answer won",
}
#: What a difference does not say by itself.
NOT_YET_WORSE = (
    "Different is not yet worse: whether an answer lost anything is for needles, questions and "
    "judge to say."
)
#: What is said of the variants of one standing, the worst first.
_LEADS = (
    (("broken",), "the text of {names} fails the sanity gate, so {whose} gains don't count"),
    (("differs",), "answers of {names} differ from {baseline}'s beyond its own noise"),
    (("indistinguishable",), "{names} can't be told from {baseline}'s own noise"),
    (("too few prompts", "no noise floor", "not measured"), "of {names} nothing can be claimed"),
)


def kl_text(kl: Range | None) -> str:
    """``0.0240 [0.0210, 0.0270]`` nats; three significant digits however small."""
    if kl is None:
        return DASH
    if kl.low is None or kl.high is None or kl.low == kl.high:
        return format_significant(kl.value)
    value, low, high = map(format_significant, (kl.value, kl.low, kl.high))
    return f"{value} [{low}, {high}]"


def share_text(share: Range | None) -> str:
    """``25.0 % [8.9 %, 53.2 %]``."""
    if share is None:
        return DASH
    if share.low is None or share.high is None:
        return format_percent(share.value)
    ends = f"{format_percent(share.low)}, {format_percent(share.high)}"
    return f"{format_percent(share.value)} [{ends}]"


def standing_sentence(one: VariantQuality, quality: QualityAnalysis) -> str:
    """What is to be said of one variant's answers, without its name."""
    if one.standing == "broken" and one.gate is not None:
        return (
            f"its text fails the sanity gate: {'; '.join(one.gate.reasons)}. So its gains don't "
            "count."
        )
    if one.standing == "not measured":
        return f"its answers could not be measured: {one.reason or 'no answer was recorded'}."
    figures = _figures(one, quality)
    if one.standing == "indistinguishable":
        return f"its answers are indistinguishable from {quality.baseline}'s own noise ({figures})."
    if one.standing == "differs":
        return f"its answers differ beyond {quality.baseline}'s own noise ({figures})."
    if one.standing == "too few prompts":
        return f"its answers were compared on too few prompts for a claim ({figures})."
    return f"its answers were compared without a noise floor to hold them against ({figures})."


def _found(standing: Standing, quality: QualityAnalysis) -> str | None:
    """What the answers of a standing are said to be; None where a reason has to be told."""
    noise = f"{quality.baseline}'s own noise"
    return {
        "differs": f"they differ beyond {noise}",
        "indistinguishable": f"they are indistinguishable from {noise}",
        "too few prompts": "they were compared on too few prompts for a claim",
        "no noise floor": "they were compared without a noise floor to hold them against",
    }.get(standing)


def standings_brief(
    variants: Sequence[VariantQuality], quality: QualityAnalysis
) -> Iterator[tuple[str, str]]:
    """(names, what is said of their answers), variants of one standing together."""
    groups: dict[str, list[VariantQuality]] = {}
    for one in variants:
        told = _found(one.standing, quality)
        groups.setdefault(told or one.variant, []).append(one)
    for told, ones in groups.items():
        if len(ones) == 1:
            yield ones[0].variant, standing_brief(ones[0], quality)
        else:
            each = "; ".join(f"{one.variant} {_in_short(one)}" for one in ones)
            yield listed([one.variant for one in ones]), f"{told}: {each}{_yardstick(quality)}."


def _in_short(one: VariantQuality) -> str:
    """``KL 0.152, needles 8 of 12, same answer 2 of 5``."""
    told = []
    if one.on_answers is not None:
        told.append(f"KL {format_significant(one.on_answers.kl.value)}")
    if one.retrieval is not None and one.retrieval.needles_asked:
        told.append(f"needles {one.retrieval.needles_right} of {one.retrieval.needles_asked}")
    if one.retrieval is not None and one.retrieval.questions_asked:
        asked = one.retrieval.questions_asked
        told.append(f"questions {one.retrieval.questions_right} of {asked}")
    if one.free is not None:
        told.append(f"same answer {one.free.exact_matches} of {one.free.prompts}")
    return ", ".join(told) or DASH


def _yardstick(quality: QualityAnalysis) -> str:
    """The baseline's own figures, by which those of several variants are read."""
    base, floor = quality.baseline_retrieval, quality.floor
    told = []
    if floor is not None and floor.on_answers is not None:
        told.append(f"KL {format_significant(floor.on_answers.kl.value)}")
    if base is not None and base.needles_asked:
        told.append(f"needles {base.needles_right}")
    if base is not None and base.questions_asked:
        told.append(f"questions {base.questions_right}")
    if floor is not None and floor.free is not None:
        told.append(f"same answer {floor.free.exact_matches}")
    return f" ({quality.baseline} itself: {', '.join(told)})" if told else ""


def standing_brief(one: VariantQuality, quality: QualityAnalysis) -> str:
    """The same finding for the page's opening: what decided it, and all that was graded."""
    found = _found(one.standing, quality)
    if found is None:
        return standing_sentence(one, quality)
    told = [*_divergence(one, quality)[:1], *_found_again(one, quality), *_alike(one, quality)]
    figures = f" ({'; '.join(told)})" if told else ""
    return f"{found}{figures}."


def _alike(one: VariantQuality, quality: QualityAnalysis) -> list[str]:
    """How many answers are the baseline's word for word, beside how many of its own were again."""
    if one.free is None:
        return []
    own = quality.floor.free if quality.floor is not None else None
    floor = "" if own is None else f", {quality.baseline} again {own.exact_matches}"
    return [f"same answer {one.free.exact_matches} of {one.free.prompts}{floor}"]


def _figures(one: VariantQuality, quality: QualityAnalysis) -> str:
    told = _divergence(one, quality)
    if one.on_context is not None:
        told.append(
            f"perplexity of the texts {format_count(one.on_context.baseline_perplexity, 2)} → "
            f"{format_count(one.on_context.perplexity, 2)}"
        )
    if one.free is not None:
        told.append(f"{one.free.exact_matches} of {one.free.prompts} answers word for word alike")
    return "; ".join([*told, *_found_again(one, quality)])


def _divergence(one: VariantQuality, quality: QualityAnalysis) -> list[str]:
    if one.on_answers is None:
        return []
    floor = quality.floor
    kl = f"KL {kl_text(one.on_answers.kl)} nats per token of the answers"
    if floor is not None and floor.on_answers is not None:
        kl += f", floor {format_significant(floor.on_answers.kl.value)}"
    return [kl, f"same likeliest token {format_percent(one.on_answers.top1_agreement)}"]


def _found_again(one: VariantQuality, quality: QualityAnalysis) -> list[str]:
    """``needles 14 → 15 of 18`` and ``questions 3 → 2 of 5``, as far as they were asked."""
    mine, base = one.retrieval, quality.baseline_retrieval
    if mine is None:
        return []
    kinds = (
        ("needles", mine.needles_right, mine.needles_asked, base and base.needles_right),
        ("questions", mine.questions_right, mine.questions_asked, base and base.questions_right),
    )
    return [
        f"{name} {f'{before} → ' if before is not None else ''}{right} of {asked}"
        for name, right, asked, before in kinds
        if asked
    ]


def lead_sentence(quality: QualityAnalysis) -> str:
    """The finding of a run in one sentence."""
    variants = [one for one in quality.variants if one.kind == "variant"]
    if not variants:
        return (
            "No variant's answers were measured: "
            f"{quality.reference_reason or 'none answered after the baseline'}."
        )
    told = []
    for standings, words in _LEADS:
        names = [one.variant for one in variants if one.standing in standings]
        whose = "its" if len(names) == 1 else "their"
        if names:
            told.append(words.format(names=listed(names), baseline=quality.baseline, whose=whose))
    sentence = "; ".join(told)
    own_words = sentence.startswith(("the ", "answers ", "of "))
    return f"{sentence[0].upper() if own_words else sentence[0]}{sentence[1:]}."


def reasons_text(reasons: Sequence[str], most: int = 2) -> str:
    """The first reasons, and how many more there are."""
    more = f" (and {len(reasons) - most} more below)" if len(reasons) > most else ""
    return "; ".join(reasons[:most]) + more


def best_judge(quality: QualityAnalysis) -> JudgeOutcome | None:
    """The judge to speak of first: a reliable one, and rather another's than the baseline's."""
    ranked = sorted(
        quality.judges, key=lambda j: (not j.reliable, j.is_self, j.status != "sealed", j.judge_id)
    )
    return ranked[0] if ranked else None


def judge_sentences(judge: JudgeOutcome, *, with_controls: bool = True) -> Iterator[str]:
    """What one judge amounts to, sentence by sentence; its controls may stand in a table."""
    yield f"{_who(judge)} {_reliability(judge)}"
    if with_controls:
        yield f"Its controls, right in both orders: {'; '.join(map(_control, judge.controls))}."
        bias = share_text(judge.position_bias)
        yield f"Its verdict followed the position in {bias} of the pairs."
    if judge.reliable and judge.status == "sealed":
        yield from (_verdict(one, judge) for one in judge.variants)
    yield _cost(judge)


def judge_name(judge: JudgeOutcome) -> str:
    """A judge's model, with what tells it from another of that name."""
    own = judge.judge_id == slugify(judge.model)
    return judge.model if own else f"{judge.model} ({judge.judge_id})"


def _who(judge: JudgeOutcome) -> str:
    if judge.is_self:
        return "The baseline's own server as judge"
    return f"The judge {judge_name(judge)}"


def _reliability(judge: JudgeOutcome) -> str:
    if judge.status != "sealed":
        return f"was not asked to the end: {judge.reason or 'it was interrupted'}."
    if judge.reliable:
        return "passed its controls."
    because = "; ".join(judge.unreliable_because)
    return (
        f"is not reliable: {because}. A control counts only if it is right in both orders, and "
        f"{format_percent(CONTROL_SHARE, 0)} of each kind are needed. Its verdict on the variants "
        "is withheld."
    )


def _control(control: ControlScore) -> str:
    needed = format_percent(CONTROL_SHARE, 0)
    return f"{KINDS[control.kind]} {control.right} of {control.asked} ({needed} needed)"


def _verdict(one: JudgedVariant, judge: JudgeOutcome) -> str:
    if one.net is None or one.wins is None:
        return f"{one.variant}: no pair has a verdict."
    margin = format_percent(judge.margin, 0)
    shown = (
        f"non-inferior at a margin of {margin}"
        if one.non_inferior
        else f"non-inferiority at a margin of {margin} is not shown"
    )
    lost = counted(one.unusable, "pair")
    unusable = f"; {lost} without a verdict left out" if one.unusable else ""
    return (
        f"{one.variant}: {counted(one.wins, 'win')}, {counted(one.ties, 'tie')} "
        f"({one.identical} word for word alike), {counted(one.losses, 'loss', 'losses')} of "
        f"{counted(one.pairs, 'pair')}{unusable}; net {share_text(one.net)}: {shown}."
    )


def _cost(judge: JudgeOutcome) -> str:
    lost = f"; {counted(judge.lost, 'question')} ended without a verdict" if judge.lost else ""
    malformed = counted(judge.malformed, "reply was", "replies were")
    return (
        f"It was asked {counted(judge.questions, 'question')} for "
        f"{format_count(judge.prompt_tokens)} prompt and {format_count(judge.output_tokens)} "
        f"output tokens in {format_duration(judge.wall_s)}; {malformed} malformed{lost}."
    )


def judge_clause(quality: QualityAnalysis) -> str:
    """The judge in half a sentence, for the opening."""
    judge = best_judge(quality)
    if judge is None:
        return "no judge was asked"
    whose = "the baseline as its own judge" if judge.is_self else f"the judge {judge_name(judge)}"
    if judge.status != "sealed":
        return f"{whose} was not asked to the end, so its verdict is withheld"
    if not judge.reliable:
        return f"{whose} is not reliable (it failed its controls), so its verdict is withheld"
    told = []
    for one in judge.variants:
        if one.wins is not None:
            word = "non-inferior" if one.non_inferior else "not shown to be non-inferior"
            lost = counted(one.losses, "loss", "losses")
            told.append(f"{one.variant} {counted(one.wins, 'win')}, {lost}, {word}")
    return f"judged by {judge_name(judge)}: {'; '.join(told) or 'no pair has a verdict'}"
