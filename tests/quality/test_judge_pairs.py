"""The questions put to a judge: real pairs, and controls that look like them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from harness.quality.judge import messages
from harness.record import QualityPrompt
from harness.workload.judge_pairs import Question, degrade, questions


def prompt(index: int, expected: tuple[str, ...] = ()) -> QualityPrompt:
    return QualityPrompt(index, "answer", "s", (1,), f"task {index}", f"text {index}", expected)


PROMPTS = [prompt(n, (f"{1000 + n}",) if n % 2 else ()) for n in range(20)]
REFERENCE = {n: f"a fine answer to task number {n} in ten whole words" for n in range(20)}
VARIANT = {n: REFERENCE[n] if n < 5 else f"{REFERENCE[n]} or so" for n in range(20)}


def asked() -> tuple[Question, ...]:
    return questions(PROMPTS, REFERENCE, {"fp8": VARIANT}, seed=1)


def test_every_pair_is_shown_in_both_orders_and_identical_answers_not_at_all() -> None:
    found = asked()
    orders = Counter((q.pair.pair_id, q.order) for q in found)
    assert set(orders.values()) == {1}
    real = {q.pair.prompt.index for q in found if q.pair.kind == "real"}
    assert real == set(range(5, 20))
    for question in found:
        first, second = question.shown
        assert (first, second) in [
            (question.pair.one, question.pair.other),
            (question.pair.other, question.pair.one),
        ]
    assert {order for _, order in orders} == {"ab", "ba"}


def test_there_are_controls_of_every_kind() -> None:
    # 15 real pairs: a fifth is 3, and 4 are the fewest.
    kinds = Counter(q.pair.kind for q in asked() if q.order == "ab")
    assert kinds == {"real": 15, "identical": 4, "degraded": 4, "known": 4}


def test_answers_are_spoiled_in_all_three_ways() -> None:
    ways = set()
    for pair in {q.pair.pair_id: q.pair for q in asked() if q.pair.kind == "degraded"}.values():
        words, worse = pair.one.split(), pair.other.split()
        if pair.other in set(REFERENCE.values()) - {pair.one}:
            ways.add("swapped")
        elif len(worse) < len(words):
            ways.add("cut")
            assert words[: len(worse)] == worse
        else:
            ways.add("shuffled")
            assert sorted(worse) == sorted(words)
    assert ways == {"swapped", "cut", "shuffled"}


def test_what_is_known_of_a_control_is_so() -> None:
    for question in asked():
        pair = question.pair
        if pair.kind == "identical":
            assert pair.one == pair.other
        if pair.kind == "degraded":
            assert pair.one == REFERENCE[pair.prompt.index]
            assert pair.other != pair.one
        if pair.kind == "known":
            assert pair.one in pair.prompt.expected
            assert pair.other not in pair.prompt.expected
            assert len(pair.other) == len(pair.one)


def test_controls_are_mixed_in_and_nothing_shown_tells_them_apart() -> None:
    found = asked()
    kinds = [question.pair.kind for question in found]
    assert kinds != sorted(kinds)
    for question in found:
        for word in ("identical", "degraded", "known", "fp8", "control"):
            assert word not in messages(question, 1000)[-1]["content"]


def test_the_seed_decides_everything() -> None:
    assert asked() == asked()
    assert asked() != questions(PROMPTS, REFERENCE, {"fp8": VARIANT}, seed=2)


@pytest.mark.parametrize("way", ["cut", "shuffled", "swapped"])
def test_a_degraded_answer_is_another_text(way: str) -> None:
    text = "one two three four five six seven eight nine ten"
    worse = degrade(text, way, "quite another answer", random.Random(1))  # noqa: S311
    assert worse != text
    assert (
        worse
        == {
            "cut": "one two",
            "swapped": "quite another answer",
            "shuffled": worse,
        }[way]
    )
    if way == "shuffled":
        assert sorted(worse.split()) == sorted(text.split())


def test_without_another_answer_swapping_becomes_shuffling() -> None:
    worse = degrade("a b c d e f g h", "swapped", "", random.Random(1))  # noqa: S311
    assert sorted(worse.split()) == list("abcdefgh")


UNGRADED = [prompt(n) for n in range(20)]


def kinds_of(found: Iterable[Question]) -> Counter[str]:
    return Counter(q.pair.kind for q in found if q.order == "ab")


def test_prompts_without_known_answers_borrow_those_of_needles() -> None:
    needles = [prompt(30 + n, (f"{2000 + n}",)) for n in range(9)]
    found = questions(UNGRADED, REFERENCE, {"fp8": VARIANT}, 1, needles)
    assert kinds_of(found)["known"] == 4
    assert {q.pair.prompt.index >= 30 for q in found if q.pair.kind == "known"} == {True}


def test_without_any_known_answer_a_few_are_made_up() -> None:
    found = questions(UNGRADED, REFERENCE, {"fp8": VARIANT}, 1)
    known = [q.pair for q in found if q.pair.kind == "known" and q.order == "ab"]
    assert len({pair.pair_id for pair in known}) == 4
    for pair in known:
        assert f"is {pair.one}." in pair.prompt.passage
        assert f"is {pair.other}." not in pair.prompt.passage
        thing = pair.prompt.instruction.removeprefix("What is the access code of the ")
        assert f"{thing.split('?')[0]} is {pair.one}." in pair.prompt.passage


def test_short_answers_are_swapped_for_others() -> None:
    short = {n: f"word{n}" for n in range(20)}
    other = {n: f"other{n}" for n in range(20)}
    found = questions(UNGRADED, short, {"fp8": other}, 1)
    spoiled = [q.pair for q in found if q.pair.kind == "degraded" and q.order == "ab"]
    assert len(spoiled) == 4
    assert all(pair.other in short.values() and pair.other != pair.one for pair in spoiled)
