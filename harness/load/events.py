"""Reads a streamed completion: server-sent events from bytes, content chunks from events.

Method: events are cut out of the bytes as they come, wherever the network happened to split or
merge them, and decoded with msgspec into the few fields that are needed. Cutting is done on
bytes, so a character whose UTF-8 is split between two reads is whole again before it is decoded.

A content chunk is an event with non-empty ``choices`` (DESIGN, definitions). Its text may be
empty: a special token under ``ignore_eos`` is a token all the same, and so is one whose bytes
the server holds back until they make a character. vLLM sends no content event without a token.

What a server says ends up in files and on pages. One event is limited in size, halves of surrogate
pairs become U+FFFD, and the key it was sent is taken out of whatever it echoes.

Source of the format: the WHATWG HTML standard, "Server-sent events", parsing an event stream.
Not covered: chat completions, several choices per request, ``event:`` and ``id:`` fields.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from harness.load.target import hide
from harness.units import Seconds, Tokens

#: A server that sends a whole long answer as one event stays below; what is larger never ends.
MAX_EVENT_BYTES = 4 << 20
#: What an answer may take in all: its tokens' events, each with a long model name, and some more.
_BYTES_PER_TOKEN = 8 << 10
_SPARE_BYTES = 16 << 20
#: Enough for a server's error with its cause, and for every finish reason there is.
_MAX_ERROR_CHARS = 2000
_MAX_REASON_CHARS = 100
_QUOTED_CHARS = 200


class EndlessStream(ValueError):
    """More has come than the tokens that were asked for can need; the rest is not worth reading."""


class EventSplitter:
    """Cuts the ``data`` of server-sent events out of a stream of bytes."""

    __slots__ = ("_after_cr", "_tail")

    def __init__(self) -> None:
        self._tail = bytearray()
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads of the events that these bytes complete.

        Raises:
            EndlessStream: what has come of one event is more than ``MAX_EVENT_BYTES``.
        """
        if self._after_cr or b"\r" in data:
            data = self._normalized(data)
        if self._tail:
            # A long event is added to, not copied, until its end is there.
            seam = self._tail.endswith(b"\n") and data.startswith(b"\n")
            self._tail += data
            if not seam and b"\n\n" not in data:
                self._limit()
                return []
            data = bytes(self._tail)
        parts = data.split(b"\n\n")
        self._tail = bytearray(parts.pop())
        self._limit()
        payloads = []
        for part in parts:
            # By far the most events are a single data line.
            if part.startswith(b"data: ") and b"\n" not in part:
                payloads.append(part[6:])
            elif (payload := _payload(part)) is not None:
                payloads.append(payload)
        return payloads

    def _limit(self) -> None:
        if len(self._tail) > MAX_EVENT_BYTES:
            raise EndlessStream(f"an event larger than {MAX_EVENT_BYTES >> 20} MiB")

    def _normalized(self, data: bytes) -> bytes:
        """Turn CR LF and lone CR into LF; the two may be split between reads."""
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
        self._after_cr = data.endswith(b"\r") if data else self._after_cr
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _payload(event: bytes) -> bytes | None:
    """The joined data lines of one event; None for a comment or an event without data."""
    lines = [
        line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: str | None = None


_decode = msgspec.json.Decoder(_Event).decode


#: No request has more tokens; larger or negative counts are a server's mistake, so unknown.
_MAX_TOKENS = 1 << 40


def _count(stated: int | None) -> Tokens | None:
    return stated if stated is not None and 0 <= stated < _MAX_TOKENS else None


class Answer:
    """What one streamed completion has said so far.

    ``chunk_times_s`` holds the arrival of every content chunk; the token counts are the
    server's own, None as long as it has not stated them; ``error`` is the first thing that went
    wrong inside the stream. The key that went with the request is in none of its texts.
    """

    __slots__ = (
        "_api_key",
        "_bytes_left",
        "_cached_tokens",
        "_splitter",
        "_texts",
        "chunk_times_s",
        "done",
        "ended_s",
        "error",
        "finish_reason",
        "output_tokens",
        "prompt_tokens",
    )

    def __init__(self, api_key: str | None = None, planned_tokens: Tokens = 0) -> None:
        self._api_key = api_key
        self._bytes_left = _SPARE_BYTES + _BYTES_PER_TOKEN * planned_tokens
        self._splitter = EventSplitter()
        self._texts: list[str] = []
        self.chunk_times_s: list[Seconds] = []
        self.done = False
        self.ended_s: Seconds | None = None
        self.error: str | None = None
        self.finish_reason: str | None = None
        self.prompt_tokens: Tokens | None = None
        self.output_tokens: Tokens | None = None
        self._cached_tokens: Tokens | None = None

    def feed(self, data: bytes, t_s: Seconds) -> None:
        """Take in bytes that arrived at ``t_s``.

        Raises:
            EndlessStream: an event or the answer has no end; the stream should be left.
        """
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise EndlessStream("more bytes than the tokens that were asked for can take")
        for payload in self._splitter.feed(data):
            if payload == b"[DONE]":
                self.done = True
                continue
            try:
                event = _decode(payload)
            except (msgspec.MsgspecError, RecursionError):
                event = self._decode_leniently(payload)
            if event.choices:
                self.chunk_times_s.append(t_s)
                choice = event.choices[0]
                if choice.text:
                    self._texts.append(choice.text)
                if choice.finish_reason is not None:
                    self.finish_reason = self._told(choice.finish_reason, _MAX_REASON_CHARS)
            if event.usage is not None:
                self._take_usage(event.usage)
            if event.error is not None or event.object == "error":
                self._fail(_error_text(event))

    def end(self, t_s: Seconds) -> None:
        """The stream ended in good order at ``t_s``: check that the answer is whole."""
        self.ended_s = t_s
        if not self.chunk_times_s:
            self._fail("the stream held no content")
        elif not self.done and self.finish_reason is None:
            self._fail("the stream ended before its finish reason and [DONE]")

    @property
    def text(self) -> str | None:
        """The text so far, None without a content chunk; what is no character becomes U+FFFD."""
        if not self.chunk_times_s:
            return None
        # Two halves of a surrogate pair, or of the key, may have come in two events.
        return hide(whole("".join(self._texts)), self._api_key)

    @property
    def cached_prompt_tokens(self) -> Tokens | None:
        """Prompt tokens from the prefix cache; more than the prompt has can't be: unknown."""
        cached, prompt = self._cached_tokens, self.prompt_tokens
        return cached if cached is not None and prompt is not None and cached <= prompt else None

    def _take_usage(self, usage: _Usage) -> None:
        self.prompt_tokens = _count(usage.prompt_tokens)
        self.output_tokens = _count(usage.completion_tokens)
        if usage.prompt_tokens_details is not None:
            self._cached_tokens = _count(usage.prompt_tokens_details.cached_tokens)

    def _decode_leniently(self, payload: bytes) -> _Event:
        """Decode what msgspec refuses: lone surrogates and bytes that are no UTF-8."""
        text = payload.decode("utf-8", "replace")
        try:
            return msgspec.convert(json.loads(text), _Event)
        except (ValueError, RecursionError) as fault:
            quoted = self._told(text, _QUOTED_CHARS)
            self._fail(f"an event could not be read ({fault}): {quoted!r}")
            return _Event()

    def _fail(self, error: str) -> None:
        if self.error is None:
            self.error = self._told(error, _MAX_ERROR_CHARS)

    def _told(self, text: str, most: int) -> str:
        """What a server says of itself, fit to be stored: whole characters, no key, no novel."""
        return cut(hide(whole(text), self._api_key), most)


def cut(text: str, most: int = _MAX_ERROR_CHARS) -> str:
    """The text, or its beginning with an ellipsis where it is longer."""
    return text if len(text) <= most else text[:most] + "…"


def whole(text: str) -> str:
    """The text with halves of surrogate pairs joined, or U+FFFD where one stands alone."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _error_text(event: _Event) -> str:
    error = event.error
    message = error.get("message") if isinstance(error, dict) else error or event.message
    return f"error in the stream: {message if message else error}"
