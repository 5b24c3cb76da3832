"""Stored answers → the questions put to a judge, controls mixed in, before any is asked.

Method: per variant and prompt one pair (baseline's answer, variant's), unless the two are the
same text, which is a tie without asking. Controls are made of the baseline's own answers and of
prompts with known answers, and look like every other pair: ``identical`` shows one answer twice,
``degraded`` an answer beside itself cut off, shuffled or swapped for that to another prompt,
``known`` a right beside a wrong answer. Where a user's prompts have no known answers, needles give
them, and where there are none, a few made-up records; short answers are spoiled by swapping alone.
So a judge can be judged on any prompts. Every pair is shown in both orders; all questions are
shuffled. Everything is drawn from the seed.

Not covered: asking (``harness.quality.judge``) and scoring (``harness.analysis.judging``).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.record import QualityPrompt
from harness.workload.corpus import NOUNS, fact_question, fact_sentence, records

PairKind = Literal["real", "identical", "degraded", "known"]
#: Controls of each kind: as many as a fifth of the pairs, but never fewer or more than these.
FEWEST_CONTROLS, MOST_CONTROLS = 4, 12
#: Identical, degraded and known answers.
CONTROL_KINDS = 3
#: Every pair is shown in both.
ORDERS: tuple[Literal["ab", "ba"], ...] = ("ab", "ba")
#: An answer with fewer words can't be cut or shuffled so that one sees it.
_SHORTEST_WORDS = 8


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt; of a control, ``one`` is the better (or the same) one."""

    pair_id: str
    kind: PairKind
    variant: str | None
    prompt: QualityPrompt
    one: str
    other: str


@dataclass(frozen=True, slots=True)
class Question:
    """A pair as it is shown: ``ab`` puts ``pair.one`` first."""

    pair: Pair
    order: Literal["ab", "ba"]

    @property
    def shown(self) -> tuple[str, str]:
        """The answers in the order in which the judge sees them."""
        both = (self.pair.one, self.pair.other)
        return both if self.order == "ab" else both[::-1]


def questions(
    prompts: Sequence[QualityPrompt],
    reference: Mapping[int, str],
    variants: Mapping[str, Mapping[int, str]],
    seed: int,
    needles: Sequence[QualityPrompt] = (),
) -> tuple[Question, ...]:
    """All questions of a run, shuffled; ``reference`` and ``variants`` are texts by prompt.

    ``needles`` are further prompts with known answers, for controls alone.
    """
    rng = random.Random(f"{seed}/judge")  # noqa: S311 - reproducible, not secret
    usable = [prompt for prompt in prompts if reference.get(prompt.index, "").strip()]
    real = list(_real(prompts, reference, variants))
    count = controls_of_a_kind(len(real))
    controls = [
        *_identical(usable, reference, count, rng),
        *_degraded(usable, reference, count, rng),
        *_known(prompts, needles, count, rng),
    ]
    asked = [Question(pair, order) for pair in (*real, *controls) for order in ORDERS]
    rng.shuffle(asked)
    return tuple(asked)


def controls_of_a_kind(pairs: int) -> int:
    """How many controls of each kind go with so many pairs, if the answers allow for them."""
    return max(FEWEST_CONTROLS, min(MOST_CONTROLS, pairs // 5))


def same_text(one: str, other: str) -> bool:
    """Whether two answers read the same."""
    return " ".join(one.split()) == " ".join(other.split())


def _real(
    prompts: Sequence[QualityPrompt],
    reference: Mapping[int, str],
    variants: Mapping[str, Mapping[int, str]],
) -> Iterator[Pair]:
    for variant, answers in variants.items():
        for prompt in prompts:
            one, other = reference.get(prompt.index), answers.get(prompt.index)
            if one is not None and other is not None and not same_text(one, other):
                yield Pair(f"{variant}/{prompt.index}", "real", variant, prompt, one, other)


def _identical(
    usable: Sequence[QualityPrompt], reference: Mapping[int, str], count: int, rng: random.Random
) -> Iterator[Pair]:
    for prompt in rng.sample(list(usable), min(count, len(usable))):
        text = reference[prompt.index]
        yield Pair(f"identical/{prompt.index}", "identical", None, prompt, text, text)


def _degraded(
    usable: Sequence[QualityPrompt], reference: Mapping[int, str], count: int, rng: random.Random
) -> Iterator[Pair]:
    fit = [p for p in usable if len(reference[p.index].split()) >= _SHORTEST_WORDS]
    short = [p for p in usable if p not in fit]
    ways = ("cut", "shuffled", "swapped")
    chosen = rng.sample(fit, min(count, len(fit)))
    made = [(prompt, ways[place % len(ways)]) for place, prompt in enumerate(chosen)]
    made += [(p, "swapped") for p in rng.sample(short, len(short))]
    kept = 0
    for prompt, way in made:
        text, foreign = reference[prompt.index], _foreign(prompt, usable, reference)
        worse = degrade(text, way, foreign, rng)
        if kept < count and not same_text(text, worse):
            kept += 1
            yield Pair(f"degraded/{prompt.index}", "degraded", None, prompt, text, worse)


def _foreign(
    prompt: QualityPrompt, fit: Sequence[QualityPrompt], reference: Mapping[int, str]
) -> str:
    """The answer to another prompt, whose passage is another one."""
    others = [p for p in fit if p.index != prompt.index and p.instruction != prompt.instruction]
    place = prompt.index % len(others) if others else 0
    return reference[others[place].index] if others else ""


def degrade(text: str, way: str, foreign: str, rng: random.Random) -> str:
    """Spoil an answer: ``cut`` to its first words, ``shuffled`` words, or ``swapped`` for another.

    Without a foreign answer, swapping becomes shuffling.
    """
    words = text.split()
    if way == "cut":
        return " ".join(words[: max(2, len(words) // 5)])
    if way == "swapped" and foreign:
        return foreign
    return " ".join(rng.sample(words, len(words)))


def _known(
    prompts: Sequence[QualityPrompt],
    needles: Sequence[QualityPrompt],
    count: int,
    rng: random.Random,
) -> Iterator[Pair]:
    graded = [prompt for prompt in prompts if prompt.expected]
    chosen = rng.sample(graded, min(count, len(graded)))
    chosen += rng.sample(list(needles), min(count - len(chosen), len(needles)))
    chosen += [_made_up(place, rng) for place in range(count - len(chosen))]
    for prompt in chosen:
        right = prompt.expected[0]
        wrong = _wrong(right, rng)
        yield Pair(f"known/{prompt.index}", "known", None, prompt, right, wrong)


def _made_up(place: int, rng: random.Random) -> QualityPrompt:
    """A question about one of four records; no server was ever asked it: its index is below 0."""
    listed = records(4, rng)
    thing, code = rng.choice(listed)
    return QualityPrompt(
        index=-1 - place,
        task="known",
        source="made up",
        prompt_token_ids=(),
        instruction=fact_question(thing),
        passage=" ".join(fact_sentence(*record) for record in listed),
        expected=(code,),
    )


def _wrong(right: str, rng: random.Random) -> str:
    """An answer of the same form that is not the right one."""
    if not right.isdigit():
        return rng.choice([noun for noun in NOUNS if noun != right.lower()])
    while True:
        wrong = str(rng.randrange(10 ** (len(right) - 1), 10 ** len(right)))
        if wrong != right:
            return wrong
