"""Replies that are broken, too large, endless or compressed: told as such, soon."""

from __future__ import annotations

import gzip
import json
import socket
import time
from typing import Any

import pytest

from harness.errors import EngineError
from harness.quality import judge
from harness.quality.client import EngineClient
from harness.quality.judge import JudgeTarget, judge_all, parse_verdict
from harness.record import Judgement, QualityPrompt
from harness.workload.judge_pairs import Pair, Question
from tests.quality.raw import Sender, answering, whole

PROMPT = QualityPrompt(0, "answer", "s", (1,), "What is it?", "It is a lantern.")
QUESTION = Question(Pair("p", "real", "fp8", PROMPT, "one", "other"), "ab")


def put(send: Sender, timeout_s: float = 10.0) -> tuple[list[Judgement], str | None, float]:
    kept: list[Judgement] = []
    with answering(send) as url:
        target = JudgeTarget(url, "m", "sk-secret", timeout_s=timeout_s, concurrency=1)
        began = time.monotonic()
        reason = judge_all(target, [QUESTION], (), kept.append)
    return kept, reason, time.monotonic() - began


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"choices": [nonsense', id="broken"),
        pytest.param(b'{"choices":[{"message":{"content":"\xff\xfe"}}]}', id="no UTF-8"),
        pytest.param(b"[" * 200_000, id="nested"),
        pytest.param(b'{"a": ' + b"9" * 5000 + b"}", id="digits"),
        pytest.param(b"", id="empty"),
        pytest.param(b"<html>", id="html"),
    ],
)
def test_a_judge_that_sends_no_json_is_malformed_and_ends_nothing(body: bytes) -> None:
    kept, reason, _ = put(whole(body))
    assert reason is None
    assert [(j.verdict, j.malformed, j.error) for j in kept] == [(None, 3, "the reply is no JSON")]


@pytest.mark.parametrize("body", [b"null", b"[1, 2]", b'"A"', b'{"choices": {"0": 1}}'])
def test_a_judge_that_sends_json_of_another_form_is_malformed(body: bytes) -> None:
    kept, reason, _ = put(whole(body))
    assert (reason, kept[0].malformed, kept[0].error) == (None, 3, "no verdict in ''")


def test_a_refusal_with_half_a_character_can_be_stored() -> None:
    kept, reason, _ = put(whole(b'{"error": {"message": "bad \\ud800 x"}}', "400 Bad Request"))
    assert reason is not None
    assert kept[0].error is not None
    assert kept[0].error.encode()


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request"])
def test_a_reply_of_gigabytes_is_read_up_to_four_mebibytes(status: str) -> None:
    sent = []

    def send(connection: socket.socket) -> None:
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n\r\n".encode())
        for _ in range(64_000):
            connection.sendall(b"x" * 65536)
            sent.append(65536)

    kept, reason, _ = put(send)
    assert reason is not None
    assert "the reply is larger than 4.00 MiB" in reason
    # Lost, not malformed: asked once. Beyond the limit only what lay in the sockets was sent.
    assert (kept[0].attempts, kept[0].malformed) == (1, 0)
    assert sum(sent) < judge.MOST_BYTES + (16 << 20)


def test_a_body_that_drips_is_given_up_at_the_time_limit() -> None:
    def send(connection: socket.socket) -> None:
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
        )
        while True:
            connection.sendall(b" ")
            time.sleep(0.05)

    kept, reason, took_s = put(send, timeout_s=0.6)
    assert reason is not None
    assert kept[0].verdict is None
    # Each byte comes well within the limit of one read; the whole is given up once, not thrice.
    assert 0.6 <= took_s < 8.0


def test_a_compressed_reply_is_not_unpacked() -> None:
    packed = gzip.compress(b"x" * 1_000_000)

    def send(connection: socket.socket) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
        connection.sendall(head.encode() + packed)

    _, reason, _ = put(send)
    assert reason is not None
    assert "compressed" in reason


def test_a_server_of_nothing_but_braces_is_read_in_no_time() -> None:
    said = json.dumps({"choices": [{"message": {"content": "{" * 200_000}}]})
    kept, _, _ = put(whole(said.encode()))
    assert kept[0].malformed == 3
    began = time.monotonic()
    for text in ("{" * 400_000, '{"' * 200_000, "{}" * 200_000, '{"a":' * 100_000, "{ " * 200_000):
        assert parse_verdict(text) is None
    # Quadratic took minutes for one of them.
    assert time.monotonic() - began < 10.0


def test_a_verdict_within_other_text_and_braces_is_found() -> None:
    said = 'I think {hard}. {"a": {"b": 1}} So: {"verdict": "B", "reason": "has {braces}"} done'
    assert parse_verdict(said) == ("B", "has {braces}")


@pytest.fixture(params=[b'{"choices": [no', b"\xff\xfe", b"[1]", b"null"])
def broken(request: pytest.FixtureRequest) -> Any:
    with answering(whole(request.param)) as url:
        client = EngineClient(url, "m", "sk-secret", timeout_s=10.0)
        yield client
        client.close()


def test_an_engine_that_sends_no_json_object_fails_the_question_not_the_bench(
    broken: EngineClient,
) -> None:
    assert "no JSON" in (broken.answer(0, (1, 2), 8).error or "")
    assert "no JSON" in (broken.score(0, (1, 2), (3,)).error or "")
    with pytest.raises(EngineError, match="no JSON"):
        broken.tokenize("a")
    with pytest.raises(EngineError, match="no JSON"):
        broken.detokenize((1,))


def of_engine(body: Any) -> tuple[Any, Any]:
    with answering(whole(json.dumps(body).encode())) as url:
        client = EngineClient(url, "m", "sk-secret", timeout_s=10.0)
        try:
            return client.answer(0, (1, 2), 8), client.score(0, (1, 2), (3,))
        finally:
            client.close()


@pytest.mark.parametrize(
    "choice",
    [
        {"text": "a", "token_ids": ["x"]},
        {"text": "a", "token_ids": [-1]},
        {"text": "a", "token_ids": [1.5]},
        ["a"],
        "a",
        None,
    ],
)
def test_an_answer_that_could_not_be_read_back_is_an_error_of_that_answer(choice: Any) -> None:
    answer, _ = of_engine({"choices": [choice]})
    assert answer.error is not None
    assert answer.text is None


def test_what_is_no_count_or_no_reason_in_an_answer_is_unknown_and_the_key_is_kept_out() -> None:
    choice = {"text": "so sk-secret \ud800", "finish_reason": 5, "token_ids": [7]}
    answer, _ = of_engine({"choices": [choice], "usage": {"prompt_tokens": "9"}})
    assert (answer.text, answer.finish_reason, answer.prompt_tokens) == ("so … ?", None, None)
    assert answer.error is None


@pytest.mark.parametrize(
    "place",
    [
        None,
        {"3": {"logprob": float("nan"), "rank": 1}},
        {"3": {"logprob": float("inf"), "rank": 1}},
        {"3": {"logprob": 1e308, "rank": 1}},
        {"3": {"logprob": -1.0, "rank": 0}},
        {"3": {"logprob": 10**400, "rank": 1}},
        {"3": {"logprob": "sk-secret", "rank": 1}},
        {"-3": {"logprob": -1.0, "rank": 1}},
    ],
)
def test_a_probability_that_is_none_is_an_error_of_that_score(place: Any) -> None:
    listed = [None, {"2": {"logprob": -1.0, "rank": 1}}, place]
    _, score = of_engine({"choices": [{"text": "", "prompt_logprobs": listed}]})
    assert score.error is not None
    assert "sk-secret" not in score.error
    assert score.logprobs == ()


def test_a_probability_of_nought_is_kept_as_the_least() -> None:
    # −∞ is what a filtered token has; it is kept as a number that can be read back.
    listed = [None, {"2": {"logprob": -1.0, "rank": 1}}, {"3": {"logprob": -1e400, "rank": 1}}]
    _, score = of_engine({"choices": [{"text": "", "prompt_logprobs": listed}]})
    assert (score.error, score.logprobs) == (None, (-1.0, -9999.0))
