"""English prose to ask questions about, and the questions: fifty of them, no download needed.

Method: CPython ships its language reference as plain text (``pydoc_data.topics``, about 190,000
characters of which are prose once grammar, code and tables are left out). The prose is cut into
50 passages at paragraph ends; a prompt begins with its own passage and goes on with the others in
an order drawn from the seed, until it is long enough. Five kinds of task take turns; two of them
have known answers, because invented records stand in the text ("The access code of the amber
lantern is 4821."). Everything is a function of the text and the seed.

Not covered: tokens (``harness.quality.prompts`` cuts every prompt to its exact length), and
contexts beyond the whole prose (about 42,000 tokens), which then repeats itself. Beyond about 900
tokens the passages of different prompts overlap, though no two begin alike.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.units import Fraction, Tokens

PASSAGES = 50
#: A paragraph is prose if so much of it is letters and plain punctuation.
_PROSE_SHARE = 0.85
_SHORTEST_PARAGRAPH = 120

ADJECTIVES = (
    "amber", "broken", "copper", "distant", "eastern", "frozen", "golden", "hollow", "ivory",
    "jagged", "little", "marble", "narrow", "olive", "painted", "quiet", "rusty", "silver",
    "tidal", "velvet", "wooden", "yellow",
)  # fmt: skip
NOUNS = (
    "anchor", "bridge", "candle", "drawer", "engine", "fountain", "garden", "harbour", "island",
    "jacket", "kettle", "lantern", "mirror", "needle", "orchard", "piano", "quarry", "rocket",
    "saddle", "tunnel", "violin", "window",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence put into the text at a depth of 0 (its start) to 1 (its end)."""

    depth: Fraction
    sentence: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A question before it is cut to tokens: ``text`` is longer than needed."""

    task: str
    source: str
    text: str
    instruction: str
    facts: tuple[Fact, ...] = ()
    expected: tuple[str, ...] = ()
    context_tokens: Tokens | None = None
    depth: Fraction | None = None


def prose(topics: Mapping[str, str]) -> tuple[str, ...]:
    """The paragraphs of running English in a mapping of reference texts, each once."""
    kept: dict[str, None] = {}
    for name in sorted(topics):
        for raw in re.split(r"\n\s*\n", topics[name]):
            paragraph = re.sub(r'[*"]', "", " ".join(raw.split()))
            if _is_prose(paragraph):
                kept[paragraph] = None
    return tuple(kept)


def paragraphs_of(text: str, at_least: int = 1) -> tuple[str, ...]:
    """The paragraphs of a user's own text; whatever is in it counts as prose.

    A text of fewer than ``at_least`` paragraphs is cut at its sentences instead, and one of fewer
    sentences at its words, so that different prompts have something different to begin with.
    """
    found: tuple[str, ...] = ()
    for ends in (r"\n\s*\n", r"(?<=[.!?:])\s+", r"\s+"):
        found = tuple(piece for raw in re.split(ends, text) if (piece := " ".join(raw.split())))
        if len(found) >= at_least:
            break
    return found


def _is_prose(paragraph: str) -> bool:
    if len(paragraph) < _SHORTEST_PARAGRAPH or "::=" in paragraph or ">>>" in paragraph:
        return False
    if not paragraph[0].isupper() or paragraph[-1] not in ".:":
        return False
    plain = sum(letter.isalpha() or letter in " ,.'" for letter in paragraph)
    return plain / len(paragraph) > _PROSE_SHARE


def passages(paragraphs: Sequence[str], count: int = PASSAGES) -> tuple[str, ...]:
    """Cut paragraphs into ``count`` passages of about equal length; none is empty.

    Raises:
        ValueError: there are fewer paragraphs than passages.
    """
    if len(paragraphs) < count:
        raise ValueError(f"{len(paragraphs)} paragraphs can't make {count} passages")
    total = sum(len(paragraph) for paragraph in paragraphs)
    made: list[list[str]] = [[]]
    behind = 0
    for place, paragraph in enumerate(paragraphs):
        left = len(paragraphs) - place
        due = behind >= total * len(made) / count or left <= count - len(made)
        if made[-1] and due and len(made) < count:
            made.append([])
        made[-1].append(paragraph)
        behind += len(paragraph)
    return tuple("\n\n".join(group) for group in made)


def text_from(sources: Sequence[str], first: int, seed: int, characters: int) -> str:
    """At least ``characters`` of text that begins with passage ``first``; the rest is shuffled."""
    order = [place for place in range(len(sources)) if place != first]
    random.Random(f"{seed}/order/{first}").shuffle(order)  # noqa: S311 - reproducible, not secret
    parts, length = [], 0
    while length < characters:
        for place in (first, *order):
            parts.append(sources[place])
            length += len(sources[place]) + 2
            if length >= characters:
                break
    return "\n\n".join(parts)


def records(count: int, rng: random.Random) -> list[tuple[str, str]]:
    """``count`` invented things, each with a four-digit code that no other has."""
    things = [f"{a} {n}" for a in ADJECTIVES for n in NOUNS]
    codes = rng.sample(range(1000, 10_000), count)
    return list(zip(rng.sample(things, count), map(str, codes), strict=True))


def fact_sentence(thing: str, code: str) -> str:
    """How a record stands in the text."""
    return f"The access code of the {thing} is {code}."


def fact_question(thing: str) -> str:
    """What is asked of a record."""
    return f"What is the access code of the {thing}? Answer with the number only."


def task_drafts(sources: Sequence[str], count: int, characters: int, seed: int) -> Iterator[Draft]:
    """Yield ``count`` questions, the five kinds in turn, each from a passage of its own.

    Beyond as many questions as passages the passages come round again, with other records.
    """
    kinds = (_summarise, _extract, _answer, _continue, _instruct)
    for place in range(count):
        first = place % len(sources)
        text = text_from(sources, first, seed + place // len(sources), characters)
        rng = random.Random(f"{seed}/task/{place}")  # noqa: S311 - reproducible, not secret
        yield kinds[place % len(kinds)](f"passage {first + 1}", text, rng)


def _summarise(source: str, text: str, _rng: random.Random) -> Draft:
    return Draft(
        "summarise", source, text, "Summarise the text above in two or three plain sentences."
    )


def _extract(source: str, text: str, rng: random.Random) -> Draft:
    listed = records(3, rng)
    facts = tuple(
        Fact(depth, fact_sentence(*record))
        for depth, record in zip((0.2, 0.5, 0.8), listed, strict=True)
    )
    thing, code = rng.choice(listed)
    return Draft("extract", source, text, fact_question(thing), facts, (code,))


def _answer(source: str, text: str, rng: random.Random) -> Draft:
    ((thing, _),) = records(1, rng)
    place = rng.choice(NOUNS)
    fact = Fact(rng.uniform(0.1, 0.9), f"The {thing} is kept inside the old {place}.")
    question = f"Where is the {thing} kept, according to the text above?"
    return Draft("answer", source, text, question, (fact,), (place,))


def _continue(source: str, text: str, _rng: random.Random) -> Draft:
    return Draft(
        "continue", source, text, "Continue the text above with one more paragraph in its style."
    )


def _instruct(source: str, text: str, rng: random.Random) -> Draft:
    instruction = rng.choice(
        (
            "List three rules that the text above states, one per line.",
            "Explain the main point of the text above to a beginner.",
            "Write a title for the text above, then one sentence on why it fits.",
        )
    )
    return Draft("instruct", source, text, instruction)


def needle_drafts(
    sources: Sequence[str],
    contexts: Sequence[Tokens],
    depths: Sequence[Fraction],
    characters_per_token: int,
    seed: int,
    per_cell: int = 1,
) -> Iterator[Draft]:
    """Yield a single-needle and a multi-key question for every context length and depth.

    A single needle is one record in a text without others; a multi-key text holds three more
    records, spread evenly, that are not asked for.
    """
    for context in contexts:
        for depth in depths:
            for turn in range(per_cell):
                rng = random.Random(f"{seed}/needle/{context}/{depth}/{turn}")  # noqa: S311
                text = text_from(
                    sources,
                    rng.randrange(len(sources)),
                    rng.randrange(1 << 30),
                    context * characters_per_token,
                )
                for task in ("needle", "multikey"):
                    yield _needle(task, text, context, depth, rng)


def _needle(task: str, text: str, context: Tokens, depth: Fraction, rng: random.Random) -> Draft:
    (thing, code), *others = records(4, rng)
    facts = [Fact(depth, fact_sentence(thing, code))]
    if task == "multikey":
        facts += [
            Fact(place, fact_sentence(*other))
            for place, other in zip((0.1, 0.45, 0.85), others, strict=True)
        ]
    return Draft(
        task=task,
        source=f"{context} tokens, depth {depth:g}",
        text=text,
        instruction=fact_question(thing),
        facts=tuple(sorted(facts, key=lambda fact: fact.depth)),
        expected=(code,),
        context_tokens=context,
        depth=depth,
    )
