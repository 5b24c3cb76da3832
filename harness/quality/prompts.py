"""Drafts and users' prompts → questions as token ids, every draft of exact length.

Method: a message is "text, blank line, instruction" under the model's chat template. Where the
text begins and ends in the token sequence is found by tokenizing the message twice with different
words in place of the text: what both begin with and end with is the frame. The text is then cut
to what is left of the asked length; a fact stands between two parts of it that were tokenized on
their own, the part before it ending at a sentence's end. So every prompt has the asked number of
tokens, with any tokenizer.

Not covered: a tokenizer whose ids depend on more than the neighbouring text (none is known).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from harness.errors import InputError
from harness.quality.client import EngineClient
from harness.record import QualityPrompt
from harness.units import Tokens
from harness.workload.corpus import Draft
from harness.workload.prompt_file import UserPrompt, parse_prompts

#: Two texts without a common beginning or end, to find the frame with.
_PROBES = ("Alpha quietly waits", "Zebras jump over")
_SENTENCE_END = re.compile(r"[.:]\s+(?=[A-Z])")


def exact_prompt(client: EngineClient, index: int, draft: Draft, length: Tokens) -> QualityPrompt:
    """Make a question of exactly ``length`` tokens from a draft.

    Raises:
        InputError: the length does not even hold the instruction and the facts.
        EngineError: the server can't tokenize.
    """
    head, tail = _frame(client, draft.instruction)
    room = length - len(head) - len(tail)
    body = _body(client, draft, room)
    return QualityPrompt(
        index=index,
        task=draft.task,
        source=draft.source,
        prompt_token_ids=(*head, *body, *tail),
        instruction=draft.instruction,
        passage=client.detokenize(body),
        expected=draft.expected,
        context_tokens=length,
        depth=draft.depth,
    )


def _frame(client: EngineClient, instruction: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens before and after the text of a message."""
    one, other = (client.tokenize_chat([("user", f"{p}\n\n{instruction}")]) for p in _PROBES)
    before = _common(one, other)
    after = _common(one[before:][::-1], other[before:][::-1])
    return one[:before], one[len(one) - after :]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


def _body(client: EngineClient, draft: Draft, room: Tokens) -> tuple[int, ...]:
    facts = [client.tokenize(f" {fact.sentence}") for fact in draft.facts]
    free = room - sum(map(len, facts))
    if free < len(facts) + 1:
        raise InputError(
            f"{draft.context_tokens or 'the asked'} tokens do not hold the question "
            f"{draft.instruction!r} and its {len(facts)} facts",
            where="quality: context_tokens",
            next_move="ask for longer contexts",
        )
    ends = [round(fact.depth * free) for fact in draft.facts]
    pieces = _pieces(client, draft.text, [*ends, free])
    body: list[int] = []
    for piece, fact in zip(pieces, (*facts, ()), strict=True):
        body += [*piece, *fact]
    return tuple(body)


def _pieces(client: EngineClient, text: str, ends: Sequence[int]) -> list[tuple[int, ...]]:
    """Cut a text at token counts ``ends``; each piece but the last ends with a sentence."""
    pieces: list[tuple[int, ...]] = []
    done = 0
    for number, end in enumerate(ends):
        wanted = end - done
        tokens = _at_least(client, text, wanted)
        if number == len(ends) - 1 or wanted == 0:
            pieces.append(tokens[:wanted])
        else:
            cut = _sentence_cut(text, round(len(text) * wanted / len(tokens)))
            piece = client.tokenize(text[:cut])
            # Too long: its beginning goes; too short: the text before a fact begins later.
            pieces.append(piece[-wanted:] if len(piece) >= wanted else tokens[:wanted])
            text = " " + text[cut:].lstrip()
        done = end
    return pieces


def _at_least(client: EngineClient, text: str, wanted: Tokens) -> tuple[int, ...]:
    tokens = client.tokenize(text)
    if wanted and not tokens:
        raise InputError("the haystack holds no text", where="quality: haystack")
    repeats = -(-wanted // max(1, len(tokens)))
    return tokens * max(1, repeats)


def _sentence_cut(text: str, near: int) -> int:
    """The first sentence end at or after ``near`` characters; ``near`` itself if there is none."""
    found = _SENTENCE_END.search(text, near)
    return found.end() if found and found.end() - near < 600 else near


def user_prompt(client: EngineClient, index: int, prompt: UserPrompt) -> QualityPrompt:
    """A user's prompt under the chat template, as long as it is."""
    content = prompt.messages[-1][1]
    return QualityPrompt(
        index=index,
        task="user",
        source=prompt.where,
        prompt_token_ids=client.tokenize_chat(prompt.messages),
        instruction=content,
        passage="\n\n".join(text for _, text in prompt.messages[:-1]),
        expected=prompt.expected,
    )


def read_user_prompts(path: Path) -> tuple[tuple[UserPrompt, ...], tuple[str, ...]]:
    """Read a user's file; bad entries are named, not fatal unless all are bad.

    Raises:
        InputError: the file can't be read, or holds no usable prompt.
    """
    text = read_text(path, "quality.prompts")
    try:
        return parse_prompts(text)
    except ValueError as error:
        raise InputError(
            str(error),
            where=str(path),
            legal=['{"prompt": …}', '{"messages": […]}', '{"conversations": […]}'],
        ) from None


def read_text(path: Path, key: str) -> str:
    """A user's UTF-8 text file.

    Raises:
        InputError: it can't be read.
    """
    try:
        # A pipe without a writer would never end, a device such as /dev/zero neither.
        if path.exists() and not path.is_file():
            raise InputError(f"can't read {path}: it is no file", where=key)
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(f"can't read {path}: {error}", where=key) from None
