"""A user's own prompts: lines of JSON, or a ShareGPT-style list of conversations.

Method: a line is ``{"prompt": "…"}`` or ``{"messages": [{"role": "user", "content": "…"}]}``,
each with an optional ``"answer"`` (a text, or a list of texts that count as right). A file that is
one JSON list is taken entry by entry; an entry with ``conversations`` gives its first human turn.
An entry that can't be used is named with its reason and left out. Not covered: reading the file
(``harness.quality.prompts``), pictures, tools, and system prompts of ShareGPT files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_ROLES = ("system", "user", "assistant")
_HUMAN = ("human", "user")


@dataclass(frozen=True, slots=True)
class UserPrompt:
    """One prompt of a user's file; ``where`` is its line or its place in the list."""

    where: str
    messages: tuple[tuple[str, str], ...]
    expected: tuple[str, ...] = ()


def parse_prompts(text: str) -> tuple[tuple[UserPrompt, ...], tuple[str, ...]]:
    """Return the usable prompts, and a sentence for every entry that is not.

    Raises:
        ValueError: no entry can be used; the sentence names the first reasons.
    """
    good: list[UserPrompt] = []
    bad: list[str] = []
    for where, entry in _entries(text):
        try:
            good.append(_prompt(where, _loaded(entry)))
        except ValueError as error:
            bad.append(f"{where}: {error}")
    if not good:
        raise ValueError("no usable prompt; " + ("; ".join(bad[:3]) or "the file is empty"))
    return tuple(good), tuple(bad)


def _entries(text: str) -> Iterator[tuple[str, Any]]:
    """(place, entry): an entry of a list is a value already, a line is still text."""
    if (listed := _whole_list(text)) is not None:
        yield from ((f"entry {number}", entry) for number, entry in enumerate(listed, 1))
        return
    # Not splitlines(): a JSON string may hold U+2028 and other ends of a line as they are.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"line {number}", line


def _whole_list(text: str) -> list[Any] | None:
    """The entries of a file that is one JSON list; None if it is none."""
    if not text.lstrip().startswith("["):
        return None
    try:
        listed = json.loads(text)
    except json.JSONDecodeError:
        return None
    except RecursionError:
        raise ValueError("no JSON that can be read: it is nested too deeply") from None
    return listed if isinstance(listed, list) else None


def _loaded(entry: Any) -> Mapping[str, Any]:
    try:
        value = json.loads(entry) if isinstance(entry, str) else entry
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON ({error.msg})") from None
    except RecursionError:
        raise ValueError("no JSON that can be read: it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def _prompt(where: str, entry: Mapping[str, Any]) -> UserPrompt:
    if "prompt" in entry:
        messages: tuple[tuple[str, str], ...] = (("user", _text(entry["prompt"], "prompt")),)
    elif "messages" in entry:
        messages = tuple(_message(message) for message in _list(entry["messages"], "messages"))
    elif "conversations" in entry:
        messages = (("user", _first_human(_list(entry["conversations"], "conversations"))),)
    else:
        raise ValueError("neither prompt nor messages nor conversations")
    if messages[-1][0] != "user":
        raise ValueError("the last message is not the user's")
    return UserPrompt(where, messages, _expected(entry.get("answer")))


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is no text")
    if any("\ud800" <= character <= "\udfff" for character in value):
        # JSON can write it as an escape; neither a request nor a record can hold it.
        raise ValueError(f"{name} holds half of a surrogate pair")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} is no list with entries")
    return value


def _message(message: Any) -> tuple[str, str]:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise ValueError(f"a message needs a role of {', '.join(_ROLES)}")
    return str(message["role"]), _text(message.get("content"), "content")


def _first_human(turns: list[Any]) -> str:
    for turn in turns:
        if isinstance(turn, dict) and turn.get("from") in _HUMAN:
            return _text(turn.get("value"), "value")
    raise ValueError("conversations hold no human turn")


def _expected(answer: Any) -> tuple[str, ...]:
    if answer is None:
        return ()
    listed = answer if isinstance(answer, list) else [answer]
    if not listed or not all(isinstance(one, str | int | float) for one in listed):
        raise ValueError("answer is neither a text nor a list of texts")
    # A blank answer would be found in every text.
    return tuple(_text(str(one), "answer") for one in listed)
