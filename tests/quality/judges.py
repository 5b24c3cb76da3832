"""Scripted judges behind a local endpoint: one that knows, one that always says A, and worse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

Verdict = Callable[[str, str, str], str]
_SHOWN = re.compile(
    r"(?P<context>.*)\n\nAnswer A:\n(?P<a>.*?)\n\nAnswer B:\n(?P<b>.*?)"
    r"\n\nWhich answer is better\?",
    re.DOTALL,
)


def scripted(verdict: Verdict) -> Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]:
    """A handler that answers with what ``verdict(context, a, b)`` says."""

    def handle(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        assert path == "/v1/chat/completions"
        shown = _SHOWN.fullmatch(body["messages"][-1]["content"])
        assert shown is not None
        said = verdict(shown["context"], shown["a"], shown["b"])
        return reply(json.dumps({"verdict": said, "reason": "so it is"}))

    return handle


def reply(text: str, tokens: tuple[int, int] = (100, 10)) -> tuple[int, dict[str, Any]]:
    """A chat completion that says ``text``."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    return 200, {"object": "chat.completion", "choices": [choice], "usage": usage}


def perfect(good: Sequence[tuple[str, str]]) -> Verdict:
    """Knows the good answer to every text (passage, answer), and can look up what a text says."""

    def verdict(context: str, a: str, b: str) -> str:
        def worth(answer: str) -> int:
            asked = re.search(r"Task:\nWhat is the access code of the ([a-z ]+)\?", context)
            place = re.search(r"Task:\nWhere is the ([a-z ]+) kept", context)
            if asked and re.fullmatch(r"\d+", answer):
                return int(f"code of the {asked[1]} is {answer}" in context)
            if place and re.fullmatch(r"\w+", answer):
                return int(f"{place[1]} is kept inside the old {answer}" in context)
            return int(any(text in context and answer == right for text, right in good))

        if worth(a) == worth(b):
            return "tie"
        return "A" if worth(a) > worth(b) else "B"

    return verdict


def always_a(_context: str, _a: str, _b: str) -> str:
    """Never looks."""
    return "A"
