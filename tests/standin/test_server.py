from __future__ import annotations

import json
import time
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.load.playing import planned, play_against
from tests.standin.behaviour import Behaviour, parse_options
from tests.standin.process import standin_server


def test_options_are_laid_over_the_defaults_and_mistakes_are_refused():
    default = Behaviour(itl_s=0.5)
    assert parse_options("ttft_s=0.2,usage=0", default) == Behaviour(0.2, 0.5, usage=0)
    with pytest.raises(ValueError, match="unknown option 'tttf_s'"):
        parse_options("tttf_s=1", default)
    with pytest.raises(ValueError, match="unknown failure 'explode'"):
        parse_options("fail=explode", default)


def test_the_routes_of_a_vllm_server_are_there(standin):
    with urllib.request.urlopen(f"{standin.origin}/health", timeout=30) as reply:  # noqa: S310
        assert reply.status == 200
    (card,) = standin.get("/v1/models")["data"]
    assert (card["id"], card["max_model_len"]) == ("standin", 8192)
    assert standin.get("/version") == {"version": "0.32.0"}
    with pytest.raises(urllib.error.HTTPError, match="404"):
        standin.get("/nonsense")


def test_the_metrics_are_prometheus_text_and_count_what_was_served(own_standin):
    play_against(own_standin.url(), planned(3, output_tokens=8))
    with urllib.request.urlopen(f"{own_standin.origin}/metrics", timeout=30) as reply:  # noqa: S310
        families = text_string_to_metric_families(reply.read().decode())
    samples = {sample.name: sample for family in families for sample in family.samples}
    # Three prompts of seven tokens, three answers of eight.
    assert samples["vllm:prompt_tokens_total"].value == 21
    assert samples["vllm:generation_tokens_total"].value == 24
    assert samples["vllm:num_requests_running"].value == 0
    assert samples["vllm:cache_config_info"].labels["num_gpu_blocks"] == "364"


def cache_usage(origin: str) -> float:
    with urllib.request.urlopen(f"{origin}/metrics", timeout=30) as reply:  # noqa: S310
        lines = reply.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith("vllm:kv_cache_usage_perc{")]
    return float(line.split()[-1])


def test_a_running_request_holds_whole_blocks(own_standin):
    usage = [cache_usage(own_standin.origin)]

    def seen() -> str | None:
        usage.append(cache_usage(own_standin.origin))
        return "seen" if usage[-1] else None

    url = own_standin.url(fail="hang", fail_after=1)
    play_against(url, planned(1, output_tokens=200), should_stop=seen)
    # 7 + 200 tokens are two blocks of 128, of 364 blocks less the null block.
    assert (usage[0], usage[-1]) == (0, pytest.approx(2 / 363))
    # It hears that the client has gone within a moment.
    deadline = time.monotonic() + 30
    while cache_usage(own_standin.origin) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cache_usage(own_standin.origin) == 0


def test_it_says_how_late_it_was(own_standin):
    play_against(own_standin.url(ttft_s=0.05, itl_s=0.01), planned(2, output_tokens=10))
    late = own_standin.get("/lateness")
    assert len(late) == 20
    assert min(late) >= 0


def test_what_answer_quality_asks_is_noted_by_kind(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_ASKED", str(tmp_path / "asked"))
    answer = {"prompt": [70, 71], "max_tokens": 2}
    wanted = [
        ("/v1/completions", answer),
        ("/v1/completions", {**answer, "prompt_logprobs": 1}),
        ("/v1/chat/completions", {"messages": []}),
        ("/tokenize", {"prompt": "a"}),
    ]
    with standin_server() as server:
        for route, body in wanted:
            request = urllib.request.Request(  # noqa: S310
                server.origin + route, json.dumps(body).encode(), method="POST"
            )
            with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
                assert reply.status == 200
    noted = (tmp_path / "asked").read_text().splitlines()
    assert noted == ["/v1/completions", "score", "judge", "/tokenize"]


def test_an_answer_is_like_vllms(standin):
    body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 2, "stream": True}
    request = urllib.request.Request(  # noqa: S310
        f"{standin.url()}/completions", json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
        first, second, usage, done, rest = reply.read().decode().split("\n\n")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == " w0"
    assert json.loads(second.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert json.loads(usage.removeprefix("data: "))["usage"]["total_tokens"] == 5
    assert (done, rest) == ("data: [DONE]", "")
