"""Questions of exact length, needles where they belong, and a user's own prompts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from harness.errors import InputError
from harness.quality.client import EngineClient
from harness.quality.prompts import exact_prompt, read_user_prompts, user_prompt
from harness.workload.corpus import Draft, Fact, needle_drafts, passages, prose, task_drafts
from tests.quality.toy import ASSISTANT, USER, Toy, serving, text_of

SOURCES = passages(prose(topics))


@pytest.fixture
def client() -> Iterator[EngineClient]:
    with serving(Toy().handle) as local:
        made = EngineClient(local.url, "toy", timeout_s=10)
        yield made
        made.close()


@pytest.mark.parametrize("length", [128, 200, 777])
def test_every_task_has_exactly_the_asked_number_of_tokens(
    client: EngineClient, length: int
) -> None:
    for place, draft in enumerate(task_drafts(SOURCES, 5, length * 8, seed=1)):
        made = exact_prompt(client, place, draft, length)
        assert len(made.prompt_token_ids) == length
        assert made.prompt_token_ids[0] == USER
        assert made.prompt_token_ids[-1] == ASSISTANT
        text = text_of(made.prompt_token_ids)
        assert draft.instruction in text
        for fact in draft.facts:
            assert fact.sentence in text
            assert fact.sentence in made.passage


def test_a_needle_stands_at_its_depth_and_after_a_sentence(client: EngineClient) -> None:
    for draft in needle_drafts(SOURCES, [400], [0.0, 0.5, 1.0], 8, seed=3):
        made = exact_prompt(client, 0, draft, 400)
        assert len(made.prompt_token_ids) == 400
        needle = next(fact.sentence for fact in draft.facts if draft.expected[0] in fact.sentence)
        before, found, after = made.passage.partition(needle)
        assert found
        share = len(before) / (len(before) + len(after))
        assert draft.depth is not None
        assert abs(share - draft.depth) < 0.12
        if before.strip():
            assert before.rstrip()[-1] in ".:"


def test_the_same_draft_gives_the_same_tokens(client: EngineClient) -> None:
    (draft,) = task_drafts(SOURCES, 1, 4000, seed=5)
    assert exact_prompt(client, 0, draft, 300) == exact_prompt(client, 0, draft, 300)


def test_a_text_that_is_too_short_is_repeated(client: EngineClient) -> None:
    draft = Draft("summarise", "s", "Only this. ", "Summarise.", (Fact(0.5, "A fact."),))
    assert len(exact_prompt(client, 0, draft, 90).prompt_token_ids) == 90


def test_a_length_that_does_not_hold_the_question_is_refused(client: EngineClient) -> None:
    (draft, *_) = needle_drafts(SOURCES, [16], [0.5], 8, seed=3)
    with pytest.raises(InputError, match="do not hold the question"):
        exact_prompt(client, 0, draft, 16)


def test_a_users_prompt_keeps_its_length_and_answer(client: EngineClient, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "Who are you?", "answer": "toy"}\nnonsense\n')
    (prompt,), bad = read_user_prompts(path)
    made = user_prompt(client, 4, prompt)
    assert (made.index, made.task, made.source, made.expected) == (4, "user", "line 1", ("toy",))
    assert text_of(made.prompt_token_ids) == "<user>Who are you?<end><assistant>"
    assert bad == ("line 2: no JSON (Expecting value)",)


@pytest.mark.parametrize("content", ["", "nonsense\n{}\n", "[1, 2]"])
def test_a_file_without_one_good_prompt_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match="no usable prompt"):
        read_user_prompts(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no-such"):
        read_user_prompts(tmp_path / "no-such.jsonl")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"prompt": ' + "[" * 100_000, "nested too deeply"),
        ('{"prompt": "a \\ud800 b"}', "prompt holds half of a surrogate pair"),
        ('{"prompt": "a", "answer": ["b", ""]}', "answer is no text"),
    ],
    ids=["list", "line", "surrogate", "blank answer"],
)
def test_what_would_break_a_run_later_is_refused_when_it_is_read(
    content: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=said):
        read_user_prompts(path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="it is no file"):
        read_user_prompts(tmp_path / "pipe")
