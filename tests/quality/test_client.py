"""One server asked for tokens, answers and scores: what is sent, what comes back, what can fail."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from threading import Event
from typing import Any

import pytest

from harness.errors import EngineError
from harness.quality.client import CONTEXT_POSITIONS, EngineClient, is_local, kept_positions
from tests.quality.toy import Local, Toy, ids_of, serving


@pytest.fixture
def toy() -> Iterator[Local]:
    with serving(Toy().handle) as local:
        yield local


@pytest.fixture
def client(toy: Local) -> Iterator[EngineClient]:
    made = EngineClient(toy.url, "toy", timeout_s=10)
    yield made
    made.close()


def test_tokens_go_there_and_back(client: EngineClient) -> None:
    tokens = client.tokenize("The lantern is lit, at last.")
    assert client.detokenize(tokens) == "The lantern is lit, at last."
    assert client.max_model_len() == 2048


def test_a_request_is_greedy_and_never_carries_a_seed(client: EngineClient, toy: Local) -> None:
    client.answer(0, ids_of("Once upon a time there was a very old and quiet town"), 8)
    path, body, _ = toy.asked[-1]
    assert path == "/v1/completions"
    assert body["temperature"] == 0.0
    assert "seed" not in body
    assert body["model"] == "toy"


def test_an_answer_carries_its_tokens_and_counts(client: EngineClient) -> None:
    prompt = ids_of("Once upon a time there was a very old and quiet town by the sea")
    answer = client.answer(3, prompt, 8)
    assert answer.error is None
    assert answer.index == 3
    assert answer.token_ids is not None
    assert len(answer.token_ids) == answer.output_tokens == 8
    assert answer.prompt_tokens == len(prompt)


def test_a_score_covers_the_context_and_the_answer_but_not_the_first_token(
    client: EngineClient,
) -> None:
    prompt, answer = ids_of("a b c d e f"), ids_of(" g h")
    score = client.score(0, prompt, answer)
    assert score.error is None
    assert score.positions == (1, 2, 3, 4, 5, 6, 7)
    assert score.prompt_length == 6
    assert all(rank >= 1 for rank in score.ranks)
    # 20 asked for, and the token that stands there where it is not among them.
    assert all(20 <= len(ids) <= 21 for ids in score.top_ids)
    for ids, logprobs in zip(score.top_ids, score.top_logprobs, strict=True):
        assert len(ids) == len(logprobs)
        assert sum(map(math.exp, logprobs)) <= 1.0 + 1e-9


def test_long_contexts_are_sampled_evenly_and_answers_whole() -> None:
    kept = kept_positions(8192, 100)
    assert len(kept) == CONTEXT_POSITIONS + 100
    assert kept[0] == 1
    assert kept[-100:] == tuple(range(8192, 8292))
    steps = {b - a for a, b in pairwise(kept[:256])}
    assert steps <= {31, 32}  # 8191 / 256 = 31.996


def test_a_short_context_is_kept_whole() -> None:
    assert kept_positions(5, 2) == (1, 2, 3, 4, 5, 6)
    assert kept_positions(1, 2) == (1, 2)


def test_a_refusal_is_recorded_with_the_servers_own_words() -> None:
    with serving(Toy(fail_path="completions").handle) as local:
        client = EngineClient(local.url, "toy", timeout_s=10)
        answer = client.answer(0, [1, 2], 4)
        score = client.score(0, [1, 2], [3])
        client.close()
    assert answer.error is not None
    assert "told to fail" in answer.error
    assert score.error is not None


def test_a_request_without_a_reply_is_not_sent_again_and_two_in_a_row_are_silence() -> None:
    over = Event()
    hangs: list[bool] = [True, False, True, True]

    def handle(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if hangs.pop(0):
            over.wait(30)
        return Toy().handle(path, body)

    with serving(handle) as local:
        client = EngineClient(local.url, "toy", timeout_s=0.3)
        told = []
        for index, hanging in enumerate(tuple(hangs)):
            # What is answered has all the time that a busy machine may need for it.
            client._client.timeout = 0.3 if hanging else 30.0
            error = client.answer(index, ids_of("one two three four five"), 4).error
            told.append((error, client.silence() is not None))
        silence = client.silence()
        client.close()
        over.set()
    lost = "/v1/completions: no reply within 0.3 s"
    # A reply in between starts the count anew.
    assert told == [(lost, False), (None, False), (lost, False), (lost, True)]
    assert silence is not None
    assert "2 requests in a row got no reply within 0.3 s" in silence
    assert len(local.asked) == 4


def test_what_the_server_could_not_take_yet_is_sent_again() -> None:
    busy = [503, 429]

    def handle(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if busy:
            return busy.pop(0), {"error": {"message": "not yet"}}
        return Toy().handle(path, body)

    with serving(handle) as local:
        client = EngineClient(local.url, "toy", timeout_s=10)
        assert client.answer(0, ids_of("one two three four five"), 4).error is None
        client.close()
    assert len(local.asked) == 3


def test_a_server_that_repeats_the_key_gets_no_part_of_it_recorded() -> None:
    secret = "sk-attached-key"  # noqa: S105
    refusal = 400, {"error": {"message": f"{'x' * 470}{secret} is wrong"}}
    with serving(lambda _p, _b: refusal) as local:
        client = EngineClient(local.url, "toy", secret, timeout_s=10)
        said = [client.answer(0, [1, 2], 4).error, client.score(0, [1, 2], [3]).error]
        with pytest.raises(EngineError) as caught:
            client.tokenize("a")
        client.close()
    assert secret[:6] not in f"{said} {caught.value}"


def test_a_server_that_scores_other_tokens_is_found_out() -> None:
    def scrambled(path: str, body: dict) -> tuple[int, dict]:  # type: ignore[type-arg]
        if "completions" in path:
            body = {**body, "prompt": body["prompt"][::-1]}
        return Toy().handle(path, body)

    with serving(scrambled) as local:
        client = EngineClient(local.url, "toy", timeout_s=10)
        score = client.score(0, ids_of("one two three four five six seven"), ids_of(" eight"))
        client.close()
    assert score.error is not None
    assert "other tokens" in score.error


def test_a_server_without_tokenize_is_named() -> None:
    with serving(lambda _path, _body: (404, {"error": {"message": "Not Found"}})) as local:
        client = EngineClient(local.url, "toy", timeout_s=10)
        with pytest.raises(EngineError, match="/tokenize"):
            client.tokenize("a")
        client.close()


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://localhost/v1", True),
        ("http://[::1]:80/v1", True),
        ("https://judge.example/v1", False),
    ],
)
def test_proxies_are_for_other_machines(url: str, local: bool) -> None:
    assert is_local(url) is local
