"""Servers that say what can't be stored, echo the key, or never end what they began."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from harness import store
from harness.load.events import MAX_EVENT_BYTES, Answer, EndlessStream, EventSplitter
from harness.load.target import hide
from harness.record import RequestRecord
from tests.load.playing import planned, play_against
from tests.standin.hostile import hostile_server, page, stream
from tests.test_store import started

KEY = "sk-SECRET/0123"
DONE = b"[DONE]"


def token(text: str, finish_reason: str | None = None) -> bytes:
    return json.dumps({"choices": [{"text": text, "finish_reason": finish_reason}]}).encode()


def asked(pieces: list[bytes]) -> RequestRecord:
    """The record of one request that was answered so, with the key on it."""
    with hostile_server(lambda _: pieces) as url:
        (record,) = play_against(url, planned(1), api_key=KEY).records
    return record


ECHOES = {
    "text": stream(token(KEY), token("!", "length"), DONE),
    "text in two events": stream(token("a" + KEY[:5]), token(KEY[5:], "length"), DONE),
    "text that breaks off": stream(token("a" + KEY[:9])),
    "finish reason": stream(token("a", KEY), DONE),
    "error": stream(token("a"), json.dumps({"error": {"message": f"key {KEY}"}}).encode(), DONE),
    "error without a message": stream(json.dumps({"error": {"key": KEY}}).encode(), DONE),
    "no such event": stream(b'{"choices": 5, "k": "' + KEY.encode() + b'"}', DONE),
    "no such event, escaped": stream(b'{"choices": "' + KEY.replace("/", r"\/").encode() + b'"}'),
    # Where it is cut to what is quoted, the key lies across the edge.
    "no JSON": stream(b"[" * 192 + KEY.encode(), DONE),
    "error status": page({"error": {"message": f"key {KEY}"}}, "400 Bad Request"),
    "long error": page({"error": {"message": "x" * 1966 + KEY}}, "400 Bad Request"),
    "error page": page(b"<html>" + KEY.encode(), "500 Oops"),
    "no HTTP": [b"HTTP/1.1 abc " + KEY.encode() + b"\r\n\r\n"],
    "header": [b"HTTP/1.1 200 OK\r\n" + KEY.encode() + b" \x00: 1\r\n\r\n"],
}


@pytest.mark.parametrize("name", ECHOES)
def test_a_key_that_the_server_echoes_is_in_no_record(name: str) -> None:
    record = asked(ECHOES[name])
    stored = msgspec.json.encode(record).decode()
    assert KEY[:6] not in stored
    # Of what is no message the openai client tells nothing.
    assert "***" in stored or name in ("error page", "no HTTP", "header")
    assert record.error is not None or name in ("text", "text in two events", "finish reason")


def test_a_key_is_hidden_whole_cut_off_and_in_jsons_spelling() -> None:
    assert hide("a sk-12345678 b", "sk-12345678") == "a *** b"
    assert hide(r"a/b\/c", "b/c") == r"a/***"
    assert hide("and sk-123", "sk-12345678") == "and ***"
    # Three characters tell nothing, and many a text ends in them.
    assert hide("a desk-", "sk-12345678") == "a desk-"
    assert hide("length", None) == hide("length", "") == "length"


HALVES = {
    "finish reason": stream(rb'{"choices": [{"text": "z", "finish_reason": "\ud800"}]}', DONE),
    "text": stream(rb'{"choices": [{"text": "\ud800", "finish_reason": "length"}]}', DONE),
    "error": stream(token("a"), rb'{"error": {"message": "bad \ud800 here"}}', DONE),
    "error without a message": stream(rb'{"error": ["\ud800"]}', DONE),
    "error status": page(rb'{"error": {"message": "bad \ud800 x"}}', "400 Bad Request"),
}


@pytest.mark.parametrize("name", HALVES)
def test_half_a_surrogate_pair_is_stored_as_the_replacement_character(
    name: str, tmp_path: Path
) -> None:
    record = asked(HALVES[name])
    with store.TrialFolder(tmp_path, started()) as folder:
        folder.append_request(record)
    (stored,) = store.read_trial(folder.path).requests
    assert stored == record
    told = f"{record.text} {record.finish_reason} {record.error}"
    # Python's own text of a list spells the half out, which is harmless as well.
    assert "\ufffd" in told or r"\ud800" in told


@pytest.mark.parametrize(
    "event",
    [
        b'{"error": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"error": {"message": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}",
        b"[" * 50_000,
    ],
)
def test_an_event_nested_without_end_fails_its_request_alone(event: bytes) -> None:
    answer = Answer()
    answer.feed(b"data: " + event + b"\n\n", 1.0)
    assert "could not be read" in str(answer.error)


def test_long_words_of_a_server_are_cut() -> None:
    answer = Answer(KEY)
    answer.feed(b"data: " + token("a", "L" * 2_000_000) + b"\n\n", 1.0)
    assert len(answer.finish_reason or "") == 101
    answer.feed(b'data: {"error": "' + b"e" * 3_000_000 + b'"}\n\n', 1.0)
    assert len(answer.error or "") == 2001
    assert str(answer.error).endswith("e…")


@pytest.mark.parametrize(
    ("stated", "known"),
    [
        ({"prompt_tokens": 7}, 7),
        ({"prompt_tokens": 6}, None),
        ({}, None),
        ({"prompt_tokens": -1}, None),
    ],
)
def test_cached_tokens_beyond_the_prompt_are_unknown(
    stated: dict[str, int], known: int | None
) -> None:
    usage = {**stated, "prompt_tokens_details": {"cached_tokens": 7}}
    answer = Answer()
    answer.feed(b"data: " + json.dumps({"usage": usage}).encode() + b"\n\n", 1.0)
    assert answer.cached_prompt_tokens == known


def test_an_event_without_end_is_left_at_its_limit() -> None:
    splitter = EventSplitter()
    whole = b"data: " + b"x" * (MAX_EVENT_BYTES - 6)
    assert splitter.feed(whole) == []
    with pytest.raises(EndlessStream, match="an event larger than 4 MiB"):
        splitter.feed(b"x")
    # What ends within the limit is taken, and so is all that comes with it.
    splitter = EventSplitter()
    splitter.feed(whole)
    assert [len(payload) for payload in splitter.feed(b"\n\ndata: y\n\n")] == [len(whole) - 6, 1]


def test_the_end_of_a_long_event_may_lie_across_two_reads() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: a") == []
    assert splitter.feed(b"b\n") == []
    assert splitter.feed(b"\ndata: c\n") == [b"ab"]
    assert splitter.feed(b"\n\n") == [b"c"]


def test_reading_a_long_event_costs_no_more_per_byte_than_a_short_one() -> None:
    def cost_s(reads: int) -> float:
        splitter, read = EventSplitter(), b"x" * 256
        begun = time.thread_time()
        for _ in range(reads):
            splitter.feed(read)
        return time.thread_time() - begun

    # 1,000 and 16,000 reads of 256 B: 16 times as much; copied at each read it was 256 times.
    assert min(cost_s(16_000) for _ in range(3)) < 80 * min(cost_s(1_000) for _ in range(3))


def test_a_stream_that_is_one_event_without_end_is_an_error_of_its_request() -> None:
    record = asked([*stream(token("a")), *[b"x" * (1 << 20)] * 6])
    assert record.error == "the stream was left: an event larger than 4 MiB"
    assert (record.text, len(record.chunk_times_s)) == ("a", 1)


def test_an_answer_that_goes_on_and_on_is_left() -> None:
    # 1 MiB of events at a time; 16 MiB are spare, and 8 tokens may take 64 KiB.
    tokens = (b"data: " + token("a") + b"\n\n") * ((1 << 20) // 60)
    sent = []

    def flood(_: str) -> Iterator[bytes]:
        yield stream()[0]
        for _ in range(400):
            yield tokens
            sent.append(1)

    with hostile_server(flood) as url:
        (record,) = play_against(url, planned(1)).records
    assert "more bytes than the tokens" in str(record.error)
    assert len(record.chunk_times_s) > 1000
    assert len(sent) < 50


def test_the_body_of_an_error_status_is_not_read_to_its_end() -> None:
    sent = []

    def body(_: str) -> Iterator[bytes]:
        yield b"HTTP/1.1 500 Oops\r\ncontent-length: 400000000\r\n\r\n"
        for _ in range(400):
            yield b"x" * 1_000_000
            sent.append(1)

    with hostile_server(body) as url:
        (record,) = play_against(url, planned(1)).records
    assert str(record.error).startswith("HTTP 500")
    # A megabyte is read, and the sockets' buffers hold a few more.
    assert len(sent) < 50
