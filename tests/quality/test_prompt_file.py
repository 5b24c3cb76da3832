"""A user's own prompts in three forms; what can't be used is named with its place."""

from __future__ import annotations

import json

import pytest

from harness.workload.prompt_file import parse_prompts


def test_lines_with_prompts_or_messages_are_read() -> None:
    text = (
        '{"prompt": "Hello?", "answer": ["hi", "hello"]}\n\n'
        '{"messages": [{"role": "system", "content": "Be brief."},'
        ' {"role": "user", "content": "Why?"}], "answer": 42}\n'
    )
    good, bad = parse_prompts(text)
    assert bad == ()
    assert [(p.where, p.messages, p.expected) for p in good] == [
        ("line 1", (("user", "Hello?"),), ("hi", "hello")),
        ("line 3", (("system", "Be brief."), ("user", "Why?")), ("42",)),
    ]


def test_a_sharegpt_list_gives_its_first_human_turns() -> None:
    turns = [
        {"from": "system", "value": "s"},
        {"from": "human", "value": "First?"},
        {"from": "gpt", "value": "Yes."},
        {"from": "human", "value": "Second?"},
    ]
    good, bad = parse_prompts(json.dumps([{"id": "x", "conversations": turns}]))
    assert good[0].messages == (("user", "First?"),)
    assert good[0].where == "entry 1"
    assert bad == ()


@pytest.mark.parametrize(
    ("line", "fragment"),
    [
        ("nonsense", "no JSON"),
        ("[1]", "no JSON object"),
        ("{}", "neither prompt nor messages nor conversations"),
        ('{"prompt": 3}', "prompt is no text"),
        ('{"prompt": " "}', "prompt is no text"),
        ('{"messages": []}', "messages is no list"),
        ('{"messages": [{"role": "x", "content": "y"}]}', "needs a role"),
        ('{"messages": [{"role": "assistant", "content": "y"}]}', "not the user's"),
        ('{"conversations": [{"from": "gpt", "value": "y"}]}', "no human turn"),
        ('{"prompt": "p", "answer": {"a": 1}}', "answer is neither"),
    ],
)
def test_a_bad_line_is_named_and_the_others_are_kept(line: str, fragment: str) -> None:
    good, bad = parse_prompts(f'{{"prompt": "good"}}\n{line}\n')
    assert len(good) == 1
    assert len(bad) == 1
    assert bad[0].startswith("line 2: ")
    assert fragment in bad[0]


@pytest.mark.parametrize("text", ["", "\n\n", "[]", "nonsense", "[nonsense"])
def test_a_file_of_which_nothing_can_be_used_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no usable prompt|no JSON"):
        parse_prompts(text)


def test_a_line_ends_at_a_line_feed_alone_and_so_keeps_its_number() -> None:
    # JSON allows U+2028 and U+0085 in a string as they are; str.splitlines() would cut there.
    good, bad = parse_prompts('{"prompt": "one\u2028two\u0085three"}\r\nbad\r\n')
    assert good[0].messages == (("user", "one\u2028two\u0085three"),)
    assert bad == ("line 2: no JSON (Expecting value)",)


def test_a_first_line_that_looks_like_a_list_spoils_no_other_line() -> None:
    good, bad = parse_prompts('[1]\n{"prompt": "good"}\n')
    assert [prompt.where for prompt in good] == ["line 2"]
    assert bad == ("line 1: no JSON object",)


def test_sharegpt_conversations_may_stand_one_a_line() -> None:
    line = json.dumps({"conversations": [{"from": "human", "value": "First?"}]})
    good, bad = parse_prompts(f"{line}\n{line}\n")
    assert [(p.where, p.messages) for p in good] == [
        ("line 1", (("user", "First?"),)),
        ("line 2", (("user", "First?"),)),
    ]
    assert bad == ()
