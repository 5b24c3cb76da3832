"""A judge behind an endpoint: what it is told, what it may answer, and what is kept of the key."""

from __future__ import annotations

import itertools
import json
import time
from threading import Event
from typing import Any

import pytest

from harness.quality import judge
from harness.quality.judge import (
    JudgeTarget,
    bare_url,
    judge_all,
    messages,
    parse_verdict,
    shortened,
)
from harness.record import Judgement, QualityPrompt
from harness.workload.judge_pairs import Pair, Question
from tests.quality.judges import always_a, reply, scripted
from tests.quality.toy import serving

PROMPT = QualityPrompt(0, "answer", "s", (1,), "What is it?", "It is a lantern.")
QUESTIONS = [
    Question(Pair(f"p{n}", "real", "fp8", PROMPT, f"one {n}", f"other {n}"), order)
    for n in range(4)
    for order in ("ab", "ba")
]
SECRET = "sk-not-to-be-seen"  # noqa: S105


def put(url: str, timeout_s: float = 10, **more: Any) -> tuple[list[Judgement], str | None]:
    kept: list[Judgement] = []
    reason = judge_all(
        JudgeTarget(url, "m", SECRET, timeout_s=timeout_s, concurrency=1),
        QUESTIONS,
        (),
        kept.append,
        **more,
    )
    return kept, reason


def test_every_question_gets_a_verdict_with_its_cost() -> None:
    with serving(scripted(always_a)) as judge:
        kept, reason = put(judge.url)
    assert reason is None
    assert [(j.pair_id, j.order) for j in kept] == [(q.pair.pair_id, q.order) for q in QUESTIONS]
    assert {j.verdict for j in kept} == {"A"}
    assert {(j.prompt_tokens, j.output_tokens, j.attempts) for j in kept} == {(100, 10, 1)}


def test_a_question_shows_the_text_the_task_and_both_answers_and_asks_for_json() -> None:
    with serving(scripted(always_a)) as judge:
        put(judge.url)
    _, body, headers = judge.asked[1]
    shown = body["messages"][-1]["content"]
    assert shown.index("It is a lantern.") < shown.index("What is it?")
    # The second question is `ba`: the other answer stands first.
    assert shown.index("other 0") < shown.index("one 0")
    assert body["temperature"] == 0
    assert "seed" not in body
    assert body["response_format"]["json_schema"]["schema"]["properties"]["verdict"]["enum"] == [
        "A",
        "B",
        "tie",
    ]
    assert {k.lower(): v for k, v in headers.items()}["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"verdict": "A", "reason": "better"}', ("A", "better")),
        ('Sure! ```json\n{"verdict": "tie"}\n```', ("tie", None)),
        ('{"verdict": "C", "reason": "?"}', None),
        ('{"verdict": "A", "reason": "cut of', None),
        ("A", None),
        ("[]", None),
        ("", None),
    ],
)
def test_only_a_verdict_in_json_counts(text: str, expected: object) -> None:
    assert parse_verdict(text) == expected


def test_malformed_replies_are_counted_and_asked_for_again() -> None:
    replies = iter([reply("well..."), reply('{"verdict": "B"}')])

    def handle(_path: str, _body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return next(replies, reply('{"verdict": "tie"}'))

    with serving(handle) as judge:
        kept, reason = put(judge.url)
    assert reason is None
    assert (kept[0].verdict, kept[0].malformed, kept[0].attempts) == ("B", 1, 2)
    # Both replies were paid for.
    assert (kept[0].prompt_tokens, kept[0].output_tokens) == (200, 20)
    assert kept[1].malformed == 0


def test_what_fails_in_transit_is_sent_again_and_is_no_malformed_reply() -> None:
    replies = iter([(503, {"error": {"message": "busy"}}), (429, {"error": {"message": "slow"}})])

    def handle(_path: str, _body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return next(replies, reply('{"verdict": "tie"}'))

    with serving(handle) as judge:
        kept, reason = put(judge.url)
    assert reason is None
    assert {(j.verdict, j.malformed, j.attempts) for j in kept} == {("tie", 0, 1)}
    assert len(judge.asked) == len(QUESTIONS) + 2


def test_a_judge_that_falls_silent_is_given_up_after_two_time_limits() -> None:
    over, asked = Event(), itertools.count(1)

    def handle(_path: str, _body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if next(asked) > 2:
            over.wait(60)
        return reply('{"verdict": "tie"}')

    with serving(handle) as judge:
        began = time.monotonic()
        kept, reason = put(judge.url, timeout_s=1.5)
        took_s = time.monotonic() - began
        over.set()
    assert reason is not None
    assert "2 requests in a row got no reply within 1.5 s" in reason
    # Eight questions, put one by one; four more would have cost a limit each.
    assert [j.verdict for j in kept] == ["tie", "tie", None, None]
    assert len(judge.asked) == 4
    assert took_s >= 2 * 1.5


def test_a_judge_that_never_answers_in_form_is_recorded_as_such() -> None:
    with serving(lambda _p, _b: reply("I like both.")) as judge:
        kept, reason = put(judge.url)
    assert reason is None
    assert {(j.verdict, j.malformed) for j in kept} == {(None, 3)}
    assert "I like both." in (kept[0].error or "")


def test_a_server_without_schemas_is_asked_without_one() -> None:
    def handle(_path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if "response_format" in body:
            return 400, {"error": {"message": "response_format is not supported"}}
        return reply('{"verdict": "A"}')

    with serving(handle) as judge:
        kept, reason = put(judge.url)
    assert reason is None
    assert {j.verdict for j in kept} == {"A"}
    # Refused once; the other seven questions do not try again.
    assert len(judge.asked) == 9


def test_a_judge_that_refuses_is_given_up_and_the_key_is_in_no_message() -> None:
    refusal = 401, {"error": {"message": f"wrong key {SECRET}"}}
    with serving(lambda _p, _b: refusal) as judge:
        kept, reason = put(judge.url)
    assert reason is not None
    assert "can't be asked" in reason
    assert len(kept) == 4
    assert SECRET not in reason
    assert SECRET not in repr(kept)
    assert SECRET not in repr(JudgeTarget(judge.url, "m", SECRET))


@pytest.mark.parametrize(
    "answer",
    [
        (401, {"error": {"message": f"Incorrect key {SECRET}"}}),
        (403, {"detail": f"header was Bearer {SECRET}"}),
        # The key lies across the place where long messages are cut.
        (400, {"error": {"message": f"{'x' * 285}{SECRET} is wrong"}}),
        reply(f"I was given {SECRET}."),
        reply(f"{'x' * 190}{SECRET}"),
        reply(json.dumps({"verdict": "A", "reason": f"because of {SECRET}"})),
        reply(json.dumps({"verdict": "A", "reason": f"{'x' * 290}{SECRET}"})),
    ],
)
def test_a_server_that_repeats_the_key_gets_no_part_of_it_recorded(
    answer: tuple[int, dict[str, Any]],
) -> None:
    with serving(lambda _p, _b: answer) as judge:
        kept, reason = put(judge.url)
    assert kept
    # Not even its beginning, where a text is cut.
    assert SECRET[:6] not in f"{kept!r} {reason}"


def test_a_key_that_reads_like_a_verdict_changes_none() -> None:
    with serving(scripted(always_a)) as judge:
        kept: list[Judgement] = []
        target = JudgeTarget(judge.url, "m", "A", timeout_s=10)
        assert judge_all(target, QUESTIONS, (), kept.append) is None
    assert {j.verdict for j in kept} == {"A"}


def test_what_has_a_verdict_is_not_asked_again_and_what_failed_is() -> None:
    done = [
        Judgement("p0", "real", "fp8", 0, "ab", "tie"),
        Judgement("p0", "real", "fp8", 0, "ba", None, error="lost"),
    ]
    kept: list[Judgement] = []
    with serving(scripted(always_a)) as judge:
        target = JudgeTarget(judge.url, "m", timeout_s=10)
        assert judge_all(target, QUESTIONS, done, kept.append) is None
    assert len(kept) == 7
    assert ("p0", "ab") not in {(j.pair_id, j.order) for j in kept}


def test_a_long_text_is_shown_by_its_ends() -> None:
    assert shortened("x" * 10, 10) == "x" * 10
    assert shortened("a" * 50 + "b" * 50, 10) == "aaaaa\n[…]\nbbbbb"
    prompt = Question(QUESTIONS[0].pair, "ab")
    assert "lantern" not in messages(prompt, 8)[-1]["content"]


def test_what_tells_right_from_wrong_is_shown_of_a_long_text_too() -> None:
    # As long as 8,192 tokens, with the fact in the part that the ends leave out.
    fact = "The access code of the amber lantern is 4821."
    for place in (7_000, 18_000, 29_000):
        passage = f"{'word ' * (place // 5)}{fact} {'word ' * ((36_000 - place) // 5)}"
        prompt = QualityPrompt(0, "extract", "s", (1,), "Which?", passage, ("4821",))
        question = Question(Pair("k", "known", None, prompt, "4821", "1111"), "ab")
        shown = messages(question, 12_000)[-1]["content"]
        assert fact in shown
        assert len(shown) < 13_000
        # Even a server with a short context sees the sentence.
        assert fact in messages(question, 200)[-1]["content"]


def test_an_answer_that_is_everywhere_is_not_shown_everywhere() -> None:
    text = "engine " * 10_000
    assert len(shortened(text, 3_000, ("engine",))) < 4_200


def test_stretches_that_touch_are_shown_as_one() -> None:
    text = "".join(f"{n:04d} " for n in range(400))
    shown = shortened(text, 900, ("0001", "0002"))
    assert shown.startswith("0000 0001 0002 0003")
    assert shown.count("[…]") == 1


def test_a_stored_url_carries_no_secret() -> None:
    assert bare_url("https://u:p@host:8443/v1?key=x#f") == "https://host:8443/v1"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 100_000, id="nested"),
        pytest.param('{"verdict": ' + "9" * 5000 + "}", id="digits"),
        pytest.param('{"verdict": ["A"]}', id="list"),
    ],
)
def test_what_can_not_be_read_is_no_verdict(text: str) -> None:
    assert parse_verdict(text) is None


def test_a_reason_with_half_a_character_can_be_stored() -> None:
    assert parse_verdict('{"verdict": "A", "reason": "so \\ud800"}') == ("A", "so ?")


def test_counts_of_a_reply_that_are_none_are_unknown() -> None:
    said = {"choices": [{"message": {"content": "A"}}]}
    for count in ("7", -1, True, 10**30, [1]):
        usage = {"prompt_tokens": count, "completion_tokens": 5}
        assert judge._text_and_usage({**said, "usage": usage}) == ("A", (None, 5))
