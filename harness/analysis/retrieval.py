"""Answers to questions with known answers → what was found again.

Method: an answer is right if it contains an expected text as a word of its own, whatever the
case, and no other number before it where a number was asked for. Needles are counted by kind,
context length and depth; the other questions together. Not covered: questions without a known
answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.analysis.quality_results import GridCell, Retrieval
from harness.record import QualityAnswer, QualityPrompt

NEEDLE_TASKS = ("needle", "multikey")
_NUMBER = re.compile(r"\d+")


def is_right(text: str | None, expected: Sequence[str]) -> bool:
    """Whether an answer gives one of the expected texts."""
    return text is not None and any(_gives(text, one) for one in expected)


def _gives(text: str, expected: str) -> bool:
    if expected.isdigit():
        first = _NUMBER.search(text.replace(",", ""))
        return first is not None and first[0] == expected
    return re.search(rf"(?<!\w){re.escape(expected)}(?!\w)", text, re.IGNORECASE) is not None


def retrieval(
    prompts: Sequence[QualityPrompt], answers: Sequence[QualityAnswer]
) -> Retrieval | None:
    """Grade what can be graded; None where nothing can. A failed request is not counted."""
    given = {answer.index: answer.text for answer in answers if answer.error is None}
    graded = [
        (prompt, is_right(given[prompt.index], prompt.expected))
        for prompt in prompts
        if prompt.expected and prompt.index in given
    ]
    if not graded:
        return None
    needles = [(prompt, right) for prompt, right in graded if prompt.task in NEEDLE_TASKS]
    others = [right for prompt, right in graded if prompt.task not in NEEDLE_TASKS]
    return Retrieval(
        cells=_cells(needles),
        needles_asked=len(needles),
        needles_right=sum(right for _, right in needles),
        questions_asked=len(others),
        questions_right=sum(others),
    )


def _cells(needles: Sequence[tuple[QualityPrompt, bool]]) -> tuple[GridCell, ...]:
    cells: dict[tuple[str, int, float], list[bool]] = {}
    for prompt, right in needles:
        key = (prompt.task, prompt.context_tokens or 0, prompt.depth or 0.0)
        cells.setdefault(key, []).append(right)
    return tuple(
        GridCell(task, context, depth, len(rights), sum(rights))
        for (task, context, depth), rights in sorted(cells.items())
    )
