"""Which answers count as right, and how needles are counted by cell."""

from __future__ import annotations

import pytest

from harness.analysis.retrieval import is_right, retrieval
from harness.record import QualityAnswer, QualityPrompt


@pytest.mark.parametrize(
    ("text", "expected", "right"),
    [
        ("4821", "4821", True),
        ("The access code is 4821.", "4821", True),
        ("4,821", "4821", True),
        ("48210", "4821", False),
        ("1111 or 4821", "4821", False),
        ("", "4821", False),
        (None, "4821", False),
        ("Inside the old Lantern.", "lantern", True),
        ("lanterns", "lantern", False),
        ("C++ (the language)", "C++", True),
    ],
)
def test_an_answer_is_right_if_it_gives_the_expected_word_or_number_first(
    text: str | None, expected: str, right: bool
) -> None:
    assert is_right(text, (expected,)) is right


def test_one_of_several_expected_answers_is_enough() -> None:
    assert is_right("the sea", ("ocean", "sea"))


def prompt(index: int, task: str, expected: tuple[str, ...], depth: float = 0.5) -> QualityPrompt:
    return QualityPrompt(index, task, "s", (1,), "i", "p", expected, 128, depth)


def test_needles_are_counted_by_kind_and_cell_and_failed_requests_not_at_all() -> None:
    prompts = [
        prompt(0, "needle", ("1",)),
        prompt(1, "needle", ("1",)),
        prompt(2, "multikey", ("1",)),
        prompt(3, "answer", ("x",)),
        prompt(4, "summarise", ()),
        prompt(5, "needle", ("1",), depth=0.9),
    ]
    answers = [
        QualityAnswer(0, "1"),
        QualityAnswer(1, "2"),
        QualityAnswer(2, "1"),
        QualityAnswer(3, "y"),
        QualityAnswer(4, "text"),
        QualityAnswer(5, error="lost"),
    ]
    found = retrieval(prompts, answers)
    assert found is not None
    assert [(c.task, c.depth, c.asked, c.right) for c in found.cells] == [
        ("multikey", 0.5, 1, 1),
        ("needle", 0.5, 2, 1),
    ]
    assert (found.needles_asked, found.needles_right) == (3, 2)
    assert (found.questions_asked, found.questions_right) == (1, 0)


def test_nothing_gradable_is_not_nought_of_nought() -> None:
    assert retrieval([prompt(0, "summarise", ())], [QualityAnswer(0, "text")]) is None
