"""Prose without a download, fifty different passages, questions drawn from the seed."""

from __future__ import annotations

from collections import Counter
from pydoc_data.topics import topics

import pytest

from harness.workload.corpus import (
    PASSAGES,
    needle_drafts,
    paragraphs_of,
    passages,
    prose,
    task_drafts,
    text_from,
)

SOURCES = passages(prose(topics))


def test_python_ships_enough_prose_for_fifty_passages() -> None:
    paragraphs = prose(topics)
    assert len(paragraphs) == len(set(paragraphs)) > 400
    assert sum(map(len, paragraphs)) > 150_000
    assert not any("::=" in paragraph or ">>>" in paragraph for paragraph in paragraphs)
    assert len(SOURCES) == len(set(SOURCES)) == PASSAGES
    assert min(map(len, SOURCES)) > 1000


def test_fifty_questions_come_from_fifty_passages_in_five_kinds_of_task() -> None:
    drafts = list(task_drafts(SOURCES, 50, 3000, seed=0))
    assert len({draft.source for draft in drafts}) == 50
    assert len({draft.text[:80] for draft in drafts}) == 50
    kinds = Counter(draft.task for draft in drafts)
    assert kinds == dict.fromkeys(("summarise", "extract", "answer", "continue", "instruct"), 10)
    assert all(len(draft.text) >= 3000 for draft in drafts)


def test_known_answers_stand_in_the_facts_of_their_question() -> None:
    drafts = list(task_drafts(SOURCES, 50, 3000, seed=0))
    for draft in drafts:
        if draft.task in ("extract", "answer"):
            (expected,) = draft.expected
            assert sum(expected in fact.sentence for fact in draft.facts) == 1
        else:
            assert draft.expected == ()


def test_the_seed_changes_the_records_and_nothing_else_is_random() -> None:
    one, same, other = (
        [draft.expected for draft in task_drafts(SOURCES, 10, 500, seed)] for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_more_questions_than_passages_come_round_again_with_other_records() -> None:
    drafts = list(task_drafts(SOURCES, 60, 6000, seed=0))
    assert drafts[51].source == drafts[1].source
    assert drafts[51].facts != drafts[1].facts


def test_a_text_begins_with_its_own_passage_and_is_long_enough() -> None:
    text = text_from(SOURCES, 7, seed=1, characters=20_000)
    assert text.startswith(SOURCES[7])
    assert len(text) >= 20_000
    # Longer than all the prose: it repeats itself.
    assert len(text_from(("short",), 0, seed=1, characters=100)) >= 100


def test_every_cell_of_the_grid_gets_a_single_and_a_multi_key_needle() -> None:
    drafts = list(needle_drafts(SOURCES, [128, 256], [0.0, 1.0], 8, seed=0, per_cell=2))
    cells = Counter((d.task, d.context_tokens, d.depth) for d in drafts)
    assert set(cells.values()) == {2}
    assert len(cells) == 8
    for draft in drafts:
        assert len(draft.facts) == (1 if draft.task == "needle" else 4)
        codes = [fact.sentence.split()[-1] for fact in draft.facts]
        assert len(set(codes)) == len(codes)
        depths = [fact.depth for fact in draft.facts]
        assert depths == sorted(depths)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_passages_hold_every_paragraph_once(count: int) -> None:
    paragraphs = [f"paragraph {n}" for n in range(7)]
    made = passages(paragraphs, count)
    assert len(made) == count
    assert "\n\n".join(made) == "\n\n".join(paragraphs)


def test_too_few_paragraphs_are_refused() -> None:
    with pytest.raises(ValueError, match="can't make 3"):
        passages(["a", "b"], 3)


def test_a_users_own_text_is_taken_as_it_is() -> None:
    assert paragraphs_of("One\nline.\n\n\n x = 1 \n") == ("One line.", "x = 1")


def test_a_text_of_few_paragraphs_is_cut_at_sentences_and_then_at_words() -> None:
    text = "One line. Another one!\nA third\n\none?"
    assert paragraphs_of(text, 2) == ("One line. Another one! A third", "one?")
    assert paragraphs_of(text, 3) == ("One line.", "Another one!", "A third one?")
    assert len(paragraphs_of(text, 4)) == 7
    # Nothing is made up where there is no more.
    assert paragraphs_of("two words", 50) == ("two", "words")


def test_prompts_from_one_long_paragraph_still_begin_differently() -> None:
    text = " ".join(f"Sentence {n} tells of lantern {n * 7}." for n in range(200))
    sources = passages(paragraphs_of(text, PASSAGES))
    drafts = list(task_drafts(sources, 50, 500, seed=0))
    assert len({draft.text[:20] for draft in drafts}) == 50
