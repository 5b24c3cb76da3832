"""The sanity gate: a gain in capacity or speed with broken text is no gain.

Method: a variant fails if its text is broken by comparison with the baseline's: empty answers,
answers that collapse into repetition or lose their letters, a perplexity that blows up, a most
likely token that is hardly ever the baseline's, needles that are no longer found, or prompts that
it read as other tokens. Thresholds are shares and ratios against the baseline, so that a weak model
is not blamed for being weak. A warning of the engine that its KV scales are uncalibrated fails the
gate too, and is quoted: nothing measured on a few prompts rules out what an unscaled cache does to
others.

Not covered: answers that are wrong but well formed (agreement, retrieval and the judge see them).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.analysis.quality_results import Agreement, Retrieval, SanityGate
from harness.record import QualityAnswer, QualityScore
from harness.units import Fraction, format_count, format_percent, format_ratio

#: Share of empty or of collapsed answers beyond the baseline's own that is taken for broken text.
BROKEN_SHARE_ABOVE: Fraction = 0.20
PERPLEXITY_RATIO = 1.5
TOP1_AGREEMENT: Fraction = 0.5
#: The gate looks at needles only where the baseline finds at least so many and this share.
MIN_NEEDLES = 6
BASELINE_FINDS: Fraction = 0.5
FINDS_LEFT: Fraction = 0.25
#: An answer this long whose four-token stretches are mostly repeats has collapsed.
COLLAPSE_TOKENS = 16
COLLAPSE_DISTINCT: Fraction = 0.4
GARBLED: Fraction = 0.1
#: What the engine (0.32.0) writes of KV scales that its checkpoint does not hold.
_SCALES = re.compile(
    r"(?:scale|scaling factor)s?\b.*(?:\b1\.0\b|uncalibrated|not calibrated)|uncalibrated.*scale",
    re.IGNORECASE,
)
#: Said of a score by whoever asked for it; a server that reads another prompt is not fit to judge.
OTHER_TOKENS = "the server scored other tokens than it was sent"


def is_empty(answer: QualityAnswer) -> bool:
    """Whether an answer says nothing at all."""
    return not (answer.text or "").strip()


def is_collapsed(answer: QualityAnswer) -> bool:
    """Whether an answer runs in circles, or is hardly made of letters any more."""
    text = answer.text or ""
    broken = sum(
        letter == "\ufffd" or not (letter.isprintable() or letter.isspace()) for letter in text
    )
    if text and broken / len(text) > GARBLED:
        return True
    items: Sequence[object] = answer.token_ids if answer.token_ids else text.split()
    if len(items) < COLLAPSE_TOKENS:
        return False
    stretches = [tuple(items[place : place + 4]) for place in range(len(items) - 3)]
    return len(set(stretches)) / len(stretches) < COLLAPSE_DISTINCT


def scale_warning(lines: Sequence[str]) -> str | None:
    """The engine's line about uncalibrated KV scales, if it wrote one."""
    return next((line for line in lines if _SCALES.search(line)), None)


def shares(answers: Sequence[QualityAnswer]) -> tuple[Fraction | None, Fraction | None]:
    """(share of empty answers, share of collapsed ones) of those that were given."""
    given = [answer for answer in answers if answer.error is None]
    if not given:
        return None, None
    empty, collapsed = sum(map(is_empty, given)), sum(map(is_collapsed, given))
    return empty / len(given), collapsed / len(given)


def gate(
    answers: Sequence[QualityAnswer],
    baseline_answers: Sequence[QualityAnswer],
    on_context: Agreement | None = None,
    on_answers: Agreement | None = None,
    found: tuple[Retrieval | None, Retrieval | None] = (None, None),
    log_warnings: Sequence[str] = (),
    scores: Sequence[QualityScore] = (),
) -> SanityGate:
    """Judge one server's text; ``found`` is (this server's retrieval, the baseline's)."""
    empty, collapsed = shares(answers)
    base_empty, base_collapsed = shares(baseline_answers)
    warning = scale_warning(log_warnings)
    reasons = [
        *_misread(scores),
        *_more("empty", empty, base_empty),
        *_more("collapsed into repetition or garbled", collapsed, base_collapsed),
        *_perplexity(on_context, "the prompts' text"),
        *_perplexity(on_answers, "the baseline's answers"),
        *_top1(on_answers or on_context),
        *_lost(*found),
        *([f"the engine warns of its KV scales: {warning}"] if warning else []),
    ]
    return SanityGate(not reasons, tuple(reasons), empty, collapsed, warning)


def _misread(scores: Sequence[QualityScore]) -> list[str]:
    """A server that scores other tokens than it was sent has scrambled the prompt."""
    misread = {s.index for s in scores if s.error is not None and OTHER_TOKENS in s.error}
    misread -= {s.index for s in scores if s.error is None}
    if not misread:
        return []
    asked = len({score.index for score in scores})
    return [f"it read other tokens than it was sent in {len(misread)} of {asked} prompts"]


def _more(what: str, share: Fraction | None, base: Fraction | None) -> list[str]:
    if share is None or share <= (base or 0.0) + BROKEN_SHARE_ABOVE:
        return []
    return [f"{format_percent(share, 0)} of the answers are {what} (baseline {_share(base)})"]


def _share(share: Fraction | None) -> str:
    return format_percent(share, 0)


def _perplexity(agreement: Agreement | None, what: str) -> list[str]:
    if agreement is None or agreement.perplexity_ratio <= PERPLEXITY_RATIO:
        return []
    return [
        (
            f"perplexity on {what} is {_times(agreement.perplexity_ratio)} the baseline's "
            f"({format_count(agreement.baseline_perplexity, 1)} → "
            f"{format_count(agreement.perplexity, 1)}), above the gate's "
            f"{format_ratio(PERPLEXITY_RATIO)}"
        )
    ]


def _times(ratio: float) -> str:
    """Digits that mean something: ``1.62×``, ``1,691×``."""
    return f"{format_count(ratio)}×" if ratio >= 100 else format_ratio(ratio)


def _top1(agreement: Agreement | None) -> list[str]:
    if agreement is None or agreement.top1_agreement >= TOP1_AGREEMENT:
        return []
    share = format_percent(agreement.top1_agreement, 0)
    return [f"its likeliest token is the baseline's at only {share} of the positions"]


def _lost(mine: Retrieval | None, base: Retrieval | None) -> list[str]:
    if mine is None or base is None or base.needles_asked < MIN_NEEDLES or not mine.needles_asked:
        return []
    share, base_share = (r.needles_right / r.needles_asked for r in (mine, base))
    if base_share < BASELINE_FINDS or share > base_share * FINDS_LEFT:
        return []
    return [
        (
            f"it finds {mine.needles_right} of {mine.needles_asked} needles, the baseline "
            f"{base.needles_right} of {base.needles_asked}"
        )
    ]
