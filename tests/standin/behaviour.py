"""What the stand-in answers: the options of a request and the bytes of its stream.

Options are given on the server's command line (the default for all requests) or as the first
part of the path, so that one server serves every test:
``http://127.0.0.1:8000/ttft_s=0.2,itl_s=0.02/v1``.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

#: Pieces of text that break careless clients: UTF-8 of every length, quotes, line ends, what
#: looks like the protocol itself, and a token that gives no text at all.
HOSTILE_PIECES = (
    "é",
    "漢字",
    "👩‍👩‍👧‍👦",
    "",
    'data: {"error": "no"}\n\n',
    "data: [DONE]\n\n",
    "\r\n\r",
    '"\\"',
    "\u2028\u0085",
    "\x00\ufffd",
    '{"choices": []}',
    "𝕏",
)

#: What ends an answer in chunked transfer coding.
LAST_CHUNK = b"0\r\n\r\n"

FAILURES = ("", "http", "error", "die", "close", "hang", "exit", "garbage")


@dataclass(frozen=True)
class Behaviour:
    """How a completion request is answered.

    The first event is due ``ttft_s`` after the request arrived and each later one ``itl_s``
    after the one before; with both 0 everything is written at once. ``fail`` names what goes
    wrong after ``fail_after`` events: an HTTP error instead of any event (``http``, with
    ``status``), an error event (``error``), a reset connection (``die``), an orderly end without
    ``[DONE]`` (``close``), silence (``hang``), the end of the server (``exit``), an event that is
    no JSON (``garbage``).
    """

    ttft_s: float = 0.0
    itl_s: float = 0.0
    tokens_per_chunk: int = 1
    events_per_write: int = 0
    split_bytes: int = 0
    text: str = "plain"
    crlf: int = 0
    comments: int = 0
    usage: int = 1
    cached_tokens: int = -1
    done: int = 1
    fail: str = ""
    fail_after: int = 0
    status: int = 500

    @property
    def at_once(self) -> bool:
        """Whether the whole answer goes out in one write."""
        instant = self.ttft_s == 0 and self.itl_s == 0 and self.events_per_write == 0
        return instant and not self.fail and not self.split_bytes

    @property
    def plain(self) -> bool:
        """Whether every event is written on its own, whole, on a schedule, to the end."""
        odd = self.fail or self.split_bytes or self.events_per_write or not self.done
        return bool(self.itl_s) and not odd and bool(self.usage)


def parse_options(text: str, default: Behaviour) -> Behaviour:
    """Lay ``key=value,key=value`` over the defaults; an unknown key is a ValueError."""
    fields = {field.name: type(field.default) for field in dataclasses.fields(Behaviour)}
    changes: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key not in fields:
            raise ValueError(f"unknown option {key!r}; legal: {', '.join(fields)}")
        changes[key] = fields[key](value)
    behaviour = dataclasses.replace(default, **changes)
    if behaviour.fail not in FAILURES:
        raise ValueError(f"unknown failure {behaviour.fail!r}; legal: {', '.join(FAILURES)}")
    return behaviour


def pieces(behaviour: Behaviour, tokens: int) -> list[str]:
    """The text of each content event of an answer of so many tokens."""
    size = behaviour.tokens_per_chunk
    if behaviour.text == "empty":
        words = [""] * tokens
    elif behaviour.text == "hostile":
        words = [HOSTILE_PIECES[i % len(HOSTILE_PIECES)] for i in range(tokens)]
    else:
        words = [f" w{i}" for i in range(tokens)]
    return ["".join(words[i : i + size]) for i in range(0, tokens, size)]


@lru_cache(maxsize=256)
def events(behaviour: Behaviour, model: str, prompt_tokens: int, tokens: int) -> tuple[bytes, ...]:
    """The content events of an answer, then its closing events joined to one entry."""
    texts = pieces(behaviour, tokens)
    body = [
        _event(behaviour, _content(model, text, "length" if i == len(texts) - 1 else None))
        for i, text in enumerate(texts)
    ]
    end = b""
    if behaviour.usage:
        end += _event(behaviour, _usage(behaviour, model, prompt_tokens, tokens))
    if behaviour.done:
        end += _raw_event(behaviour, b"[DONE]")
    return (*body, end)


@lru_cache(maxsize=256)
def whole_stream(behaviour: Behaviour, model: str, prompt_tokens: int, tokens: int) -> bytes:
    """A whole answer as it goes over the wire, one HTTP chunk per event."""
    answer = filter(None, events(behaviour, model, prompt_tokens, tokens))
    return b"".join(map(http_chunk, answer)) + LAST_CHUNK


def http_chunk(data: bytes) -> bytes:
    """One chunk of HTTP/1.1's chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def error_event(behaviour: Behaviour) -> bytes:
    """What vLLM sends when generation fails after the stream has begun."""
    error = {"message": "EngineCore died", "type": "InternalServerError", "code": 500}
    return _event(behaviour, {"error": {**error, "param": None}}) + _raw_event(behaviour, b"[DONE]")


def garbage_event(behaviour: Behaviour) -> bytes:
    """An event whose payload is cut off in the middle of its JSON."""
    return _raw_event(behaviour, b'{"id":"cmpl-standin","choices":[{"index":0,"te')


def _content(model: str, text: str, finish_reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return {
        "id": "cmpl-standin0123456789abcdef",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{**choice, "stop_reason": None}],
    }


def _usage(behaviour: Behaviour, model: str, prompt_tokens: int, tokens: int) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + tokens,
        "completion_tokens": tokens,
    }
    if behaviour.cached_tokens >= 0:
        usage["prompt_tokens_details"] = {"cached_tokens": behaviour.cached_tokens}
    return {**_content(model, "", None), "choices": [], "usage": usage}


def _event(behaviour: Behaviour, payload: dict[str, Any]) -> bytes:
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return _raw_event(behaviour, text.encode())


def _raw_event(behaviour: Behaviour, data: bytes) -> bytes:
    end = b"\r\n" if behaviour.crlf else b"\n"
    comment = b": ping" + end + end if behaviour.comments else b""
    return comment + b"data: " + data + end + end
