"""Stored questions, answers, scores and verdicts that can't be true count as damaged lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import store
from harness.analysis.agreement import agreement, paired
from harness.plausible import (
    is_sound_answer,
    is_sound_judgement,
    is_sound_prompt,
    is_sound_score,
)
from harness.record import Judgement, QualityAnswer, QualityPass, QualityPrompt, QualityScore
from tests.quality.toy import Toy
from tests.quality.toy_records import toy_records

SCORE = QualityScore(
    index=0,
    prompt_length=2,
    positions=(1, 2),
    logprobs=(-0.5, 0.0),
    ranks=(1, 1),
    top_ids=((7, 8), (9,)),
    top_logprobs=((-0.5, -1.0), (0.0,)),
)
HEAD = QualityPass(1, "reference", "reference", "fp16", "sealed", (0,), 1, reverse=False)


def test_what_is_recorded_of_a_model_is_sound() -> None:
    records = toy_records(Toy(noise=0.5))
    assert all(is_sound_prompt(prompt) for prompt in records.prompts)
    assert all(is_sound_answer(a) for p in records.passes for a in p.answers)
    assert all(is_sound_score(s) for p in records.passes for s in p.scores)
    # A score that failed holds nothing but its reason.
    assert is_sound_score(QualityScore(0, 5, error="lost"))
    assert is_sound_score(SCORE)


@pytest.mark.parametrize(
    "changes",
    [
        {"top_logprobs": ((-0.5, -1.0), ())},
        {"top_logprobs": ((-0.5, -1.0),)},
        {"top_ids": ((7, 8), (9, 9))},
        {"top_ids": ((), ()), "top_logprobs": ((), ())},
        {"top_ids": ((7, -8), (9,))},
        {"top_logprobs": ((-0.5, 1e308), (0.0,))},
        {"logprobs": (-0.5, 1e308)},
        {"logprobs": (-0.5, -1e308)},
        {"logprobs": (-0.5, float("nan"))},
        {"logprobs": (-0.5, 0.1)},
        {"logprobs": (-0.5,)},
        {"ranks": (1, 0)},
        {"ranks": (1,)},
        {"positions": (2, 1)},
        {"positions": (1, 1)},
        {"positions": (0, 1)},
        {"positions": (1, 2, 3)},
        {"positions": (1, 10**30)},
        {"index": -1},
        {"prompt_length": -1},
    ],
)
def test_a_score_that_contradicts_itself_is_not_sound(changes: dict[str, Any]) -> None:
    assert not is_sound_score(replace(SCORE, **changes))


@pytest.mark.parametrize(
    "changes",
    [{"index": -1}, {"prompt_tokens": -1}, {"output_tokens": 10**30}, {"token_ids": (1, -1)}],
)
def test_an_answer_with_counts_that_are_none_is_not_sound(changes: dict[str, Any]) -> None:
    assert not is_sound_answer(replace(QualityAnswer(0, "a", (1,)), **changes))


@pytest.mark.parametrize(
    "changes", [{"attempts": -1}, {"malformed": 10**30}, {"output_tokens": -1}]
)
def test_a_verdict_with_counts_that_are_none_is_not_sound(changes: dict[str, Any]) -> None:
    verdict = Judgement("p", "real", "fp8", 0, "ab", "A")
    assert is_sound_judgement(verdict)
    assert not is_sound_judgement(replace(verdict, **changes))


@pytest.mark.parametrize("changes", [{"depth": 1e308}, {"depth": -0.1}, {"context_tokens": -5}])
def test_a_question_at_no_place_is_not_sound(changes: dict[str, Any]) -> None:
    question = QualityPrompt(0, "needle", "s", (1,), "?", "text", depth=0.5, context_tokens=64)
    assert is_sound_prompt(question)
    assert not is_sound_prompt(replace(question, **changes))


def test_a_damaged_score_is_counted_and_the_others_are_still_compared(tmp_path: Path) -> None:
    store.write_pass(tmp_path, HEAD)
    scores = store.scores_file(tmp_path, "reference")
    scores.append(SCORE)
    scores.append(replace(SCORE, index=1, top_logprobs=((-0.5, -1.0), ())))
    scores.append(replace(SCORE, index=2, logprobs=(1e308, 1e308)))
    answers = store.answers_file(tmp_path, "reference")
    answers.append(QualityAnswer(0, "a", (1,)))
    answers.append(QualityAnswer(1, "a", (-1,)))
    records = store.read_quality(tmp_path)
    kept = records.passes[0]
    assert [score.index for score in kept.scores] == [0]
    assert [answer.index for answer in kept.answers] == [0]
    assert records.damaged_lines == 3
    found = agreement(paired(kept.scores, kept.scores))
    assert found is not None
    # exp((0.5 + 0) / 2) = e^0.25 = 1.284
    assert found.perplexity == pytest.approx(1.2840, abs=1e-4)


def test_whatever_counts_as_sound_can_be_written_and_read_back() -> None:
    for record in (SCORE, QualityAnswer(0, "a", (1,), "stop", 1, 1)):
        assert msgspec.json.decode(msgspec.json.encode(record), type=type(record)) == record
