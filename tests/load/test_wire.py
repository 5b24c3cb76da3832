from __future__ import annotations

import json
import socket

import pytest

from harness.load import Target
from harness.load.wire import encode_request
from tests.load.playing import planned, play_against, punctual
from tests.standin.behaviour import HOSTILE_PIECES
from tests.standin.process import standin_server


def test_a_request_is_greedy_pinned_streamed_and_without_a_seed():
    (request,) = planned(1, output_tokens=5)
    body = json.loads(encode_request(request, Target("http://h/v1", "m")))
    assert body == {
        "model": "m",
        "prompt": [1000, 1001, 1002, 1003, 1004, 1005, 1006],
        "max_tokens": 5,
        "min_tokens": 5,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_what_is_sent_is_what_was_encoded(own_standin):
    play_against(own_standin.url(), planned(1, output_tokens=5))
    (received,) = own_standin.get("/requests")
    assert received["body"]["prompt"] == [1000, 1001, 1002, 1003, 1004, 1005, 1006]
    assert "seed" not in received["body"]
    assert received["headers"]["accept-encoding"] == "identity"


def test_a_record_holds_the_servers_facts_and_the_times_in_order(standin):
    played = play_against(standin.url(cached_tokens=3), planned(1, output_tokens=12))
    (record,) = played.records
    assert (record.prompt_tokens_planned, record.output_tokens_planned) == (7, 12)
    assert (record.prompt_tokens, record.output_tokens) == (7, 12)
    assert record.cached_prompt_tokens == 3
    assert (record.finish_reason, record.error) == ("length", None)
    assert record.text == "".join(f" w{i}" for i in range(12))
    assert len(record.chunk_times_s) == 12
    assert record.first_chunk_s == record.chunk_times_s[0]
    assert record.last_chunk_s == record.chunk_times_s[-1]
    assert record.planned_send_s <= record.sent_s <= record.first_chunk_s
    assert record.last_chunk_s <= record.finished_s


@pytest.mark.parametrize("split_bytes", [1, 7, 64])
def test_hostile_text_survives_split_writes(standin, split_bytes):
    url = standin.url(text="hostile", split_bytes=split_bytes, crlf=split_bytes % 2)
    (record,) = play_against(url, planned(1, output_tokens=12)).records
    assert record.text == "".join(HOSTILE_PIECES)
    assert len(record.chunk_times_s) == 12
    assert record.error is None


def test_chunk_times_follow_the_servers_schedule(standin):
    url = standin.url(ttft_s=0.1, itl_s=0.05)

    def lateness() -> list[float]:
        (record,) = play_against(url, planned(1, output_tokens=5)).records
        offsets = [t - record.sent_s for t in record.chunk_times_s]
        late = [o - due for o, due in zip(offsets, [0.10, 0.15, 0.20, 0.25, 0.30], strict=True)]
        # Never early, however busy the machine is.
        assert min(late) >= -0.001
        return late

    assert max(punctual(lateness, lambda late: max(late) < 0.1)) < 0.1


def test_several_tokens_in_one_event_are_one_chunk(standin):
    (record,) = play_against(standin.url(tokens_per_chunk=5), planned(1, output_tokens=12)).records
    # 5 + 5 + 2.
    assert len(record.chunk_times_s) == 3
    assert record.output_tokens == 12


def test_an_error_status_is_recorded_with_the_servers_words(standin):
    url = standin.url(fail="http", status=400)
    (record,) = play_against(url, planned(1)).records
    assert record.error is not None
    assert record.error.startswith("HTTP 400")
    assert "the stand-in was told to refuse" in record.error
    assert (record.first_chunk_s, record.output_tokens, record.text) == (None, None, None)


@pytest.mark.parametrize(
    ("fail", "error"),
    [
        ("error", "EngineCore died"),
        ("die", "Client"),
        ("close", "ended before its finish reason"),
        ("garbage", "could not be read"),
    ],
)
def test_a_stream_that_fails_in_the_middle_keeps_its_chunks(standin, fail, error):
    url = standin.url(fail=fail, fail_after=3, itl_s=0.01)
    (record,) = play_against(url, planned(1)).records
    assert record.error is not None
    assert error in record.error
    assert len(record.chunk_times_s) == 3
    assert record.text == " w0 w1 w2"
    assert record.output_tokens is None


def test_a_server_that_falls_silent_is_a_timeout_with_the_chunks_before_it(standin):
    url = standin.url(fail="hang", fail_after=2)
    (record,) = play_against(url, planned(1), timeout_s=3).records
    assert record.error == "timeout: no whole answer after 3 s"
    assert len(record.chunk_times_s) == 2
    assert record.finished_s - record.planned_send_s >= 3


def test_a_closed_port_is_recorded_as_such():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        # Held while it is asked, so that nobody else listens there.
        (record,) = play_against(f"http://127.0.0.1:{port}/v1", planned(1)).records
    assert record.error is not None
    assert "Cannot connect to host 127.0.0.1" in record.error


def test_connections_are_used_again(own_standin):
    play_against(own_standin.url(itl_s=0.001), planned(20), concurrency=2)
    # Two slots need two connections; the third is that of the question itself.
    assert own_standin.get("/connections") == 3


def test_a_key_is_sent_and_never_shown(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-server")
    with standin_server("--api-key", "sk-right") as server:
        (good,) = play_against(server.url(), planned(1), api_key="sk-right").records
        (wrong,) = play_against(server.url(), planned(1), api_key="sk-wrong").records
        (none,) = play_against(server.url(), planned(1)).records
    assert good.error is None
    assert wrong.error is not None
    assert "HTTP 401" in wrong.error
    assert "wrong key: Bearer ***" in wrong.error
    assert none.error is not None
    assert "another-server" not in none.error
    assert "sk-right" not in repr(Target("http://h/v1", "m", "sk-right"))


def test_proxies_of_the_environment_are_not_used(standin, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    (record,) = play_against(standin.url(), planned(1)).records
    assert record.error is None
