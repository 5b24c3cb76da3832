from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load.events import Answer, EventSplitter
from tests.standin.behaviour import HOSTILE_PIECES, Behaviour, error_event, events, garbage_event


def content(text: str, **more: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, **more}]}).encode() + b"\n\n"


def stream(**options: object) -> bytes:
    return b"".join(events(Behaviour(**options), "m", 7, 24))


def read(data: bytes, cuts: list[int] | None = None) -> Answer:
    answer = Answer()
    edges = [0, *sorted(cuts or []), len(data)]
    for i in range(len(edges) - 1):
        answer.feed(data[edges[i] : edges[i + 1]], float(i))
    answer.end(float(len(edges)))
    return answer


HOSTILE_TEXT = "".join(HOSTILE_PIECES * 2)


@pytest.mark.parametrize("crlf", [0, 1])
def test_an_answer_is_the_same_wherever_the_network_splits_it(crlf):
    data = stream(text="hostile", crlf=crlf, comments=1)
    for cut in range(1, len(data)):
        answer = read(data, [cut])
        assert (len(answer.chunk_times_s), answer.text) == (24, HOSTILE_TEXT)
        assert (answer.done, answer.error, answer.output_tokens) == (True, None, 24)


def test_an_answer_that_comes_byte_by_byte_is_the_same():
    data = stream(text="hostile")
    assert read(data, list(range(1, len(data)))).text == HOSTILE_TEXT


@given(st.lists(st.text(), min_size=1), st.lists(st.integers(0, 500)))
def test_any_text_survives_any_splitting(texts, cuts):
    data = b"".join(content(text) for text in texts)
    answer = read(data, [cut for cut in cuts if cut < len(data)])
    assert answer.text == "".join(texts)
    assert len(answer.chunk_times_s) == len(texts)


def test_a_chunk_is_stamped_with_the_read_that_completed_it():
    answer = Answer()
    first, second = content("a"), content("b")
    answer.feed(first[:-1], 1.0)
    assert answer.chunk_times_s == []
    answer.feed(first[-1:] + second[:5], 2.0)
    answer.feed(second[5:] + content("c") + content("d"), 3.0)
    assert answer.chunk_times_s == [2.0, 3.0, 3.0, 3.0]


def test_an_event_with_several_tokens_is_one_chunk():
    answer = read(stream(tokens_per_chunk=5))
    # 24 tokens in fives: 5 + 5 + 5 + 5 + 4.
    assert len(answer.chunk_times_s) == 5
    assert answer.output_tokens == 24


def test_a_chunk_without_text_counts_since_it_carries_a_token():
    answer = read(stream(text="empty"))
    assert len(answer.chunk_times_s) == 24
    assert answer.text == ""


def test_usage_and_done_are_no_content():
    answer = Answer()
    answer.feed(b'data: {"choices": [], "usage": {"prompt_tokens": 3}}\n\ndata: [DONE]\n\n', 1.0)
    assert answer.chunk_times_s == []
    assert (answer.prompt_tokens, answer.output_tokens, answer.done) == (3, None, True)
    assert answer.text is None


def test_cached_prompt_tokens_are_unknown_unless_the_server_states_them():
    assert read(stream()).cached_prompt_tokens is None
    assert read(stream(cached_tokens=0)).cached_prompt_tokens == 0
    assert read(stream(cached_tokens=6)).cached_prompt_tokens == 6


def test_token_counts_are_unknown_without_usage():
    answer = read(stream(usage=0))
    assert (answer.prompt_tokens, answer.output_tokens) == (None, None)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_of_the_standard_is_understood(end):
    data = content("a").replace(b"\n", end) + content("b").replace(b"\n", end)
    for cut in range(1, len(data)):
        assert read(data, [cut]).text == "ab"


def test_comments_other_fields_and_missing_blanks_are_understood():
    data = (
        b': ping\n\nevent: x\nid: 1\ndata:{"choices":\ndata: [{"text": "a"}]}\n\n\n\nretry: 3\n\n'
    )
    assert EventSplitter().feed(data) == [b'{"choices":\n[{"text": "a"}]}']


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (error_event(Behaviour()), "EngineCore died"),
        (b'data: {"object": "error", "message": "old spelling", "code": 500}\n\n', "old spelling"),
        (b'data: {"error": "just text"}\n\n', "just text"),
        (b'data: {"error": {"code": 7}}\n\n', "7"),
    ],
)
def test_an_error_in_mid_stream_is_kept_beside_the_chunks_before_it(event, error):
    answer = read(content("a") + event)
    assert answer.error is not None
    assert error in answer.error
    assert len(answer.chunk_times_s) == 1


@pytest.mark.parametrize("data", [garbage_event(Behaviour()), b"data: 5\n\n", b"data: [[\n\n"])
def test_an_event_that_can_not_be_read_is_an_error_that_quotes_it(data):
    answer = read(content("a") + data + content("b", finish_reason="length"))
    assert answer.error is not None
    assert repr(data[6:-2])[2:10] in answer.error
    assert answer.text == "ab"


def test_halves_of_a_character_in_two_events_are_joined():
    # A server that writes JSON in ASCII may put the two surrogates of 👍 into two events.
    data = rb'data: {"choices": [{"text": "\ud83d"}]}' + b"\n\n"
    data += rb'data: {"choices": [{"text": "\udc4d"}]}' + b"\n\n"
    assert read(data + content("!")).text == "👍!"


def test_a_lone_surrogate_and_broken_utf8_become_replacement_characters():
    data = rb'data: {"choices": [{"text": "a\ud83d"}]}' + b"\n\n"
    data += b'data: {"choices": [{"text": "\xff", "finish_reason": "length"}]}\n\n'
    answer = read(data)
    assert answer.text == "a\ufffd\ufffd"
    assert answer.error is None
    assert len(answer.chunk_times_s) == 2


def test_a_stream_without_content_is_an_error():
    assert read(b"data: [DONE]\n\n").error == "the stream held no content"


def test_a_stream_that_breaks_off_is_an_error_and_one_without_done_is_not():
    assert read(content("a")).error == "the stream ended before its finish reason and [DONE]"
    assert read(content("a", finish_reason="length")).error is None
    assert read(content("a") + b"data: [DONE]\n\n").error is None


def test_a_count_that_no_request_can_have_is_unknown():
    answer = Answer()
    answer.feed(
        b'data: {"choices": [], "usage": {"prompt_tokens": -3, "completion_tokens": '
        b'1000000000000000000000000000000, "prompt_tokens_details": {"cached_tokens": -1}}}\n\n',
        1.0,
    )
    assert (answer.prompt_tokens, answer.output_tokens) == (None, None)
    assert answer.cached_prompt_tokens is None
