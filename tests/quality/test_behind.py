"""Scoring a tail by decoding it: which servers it takes, and how replies become scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.execute.quality import FORCED, scoring_of
from harness.quality.client import EngineClient
from harness.scenario import Scenario, load_scenario

TEXT = """\
schema: 1
name: demo
model: somewhere/model
baseline: full
server: {max_model_len: 1024}
variants:
  full: {}
  sinks: {env: {KVBENCH_EVICTION: "sinks=4,window=64"}}
  snapkv: {env: {KVBENCH_EVICTION: "snapkv=128"}, logits_processors: ["FORCED"]}
  blind: {env: {KVBENCH_EVICTION: "snapkv=128"}}
workloads:
  - {context_tokens: 64, output_tokens: 4, num_prompts: 2, concurrency: 2}
profiles: {cpu: {}}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    path = tmp_path / "demo.yaml"
    path.write_text(TEXT.replace("FORCED", FORCED))
    return load_scenario(path, "cpu")


def test_only_where_a_prompt_is_cut_once_it_is_computed_its_tail_is_decoded(
    scenario: Scenario,
) -> None:
    found = {name: scoring_of(scenario, name) for name in scenario.variants}
    assert found == {"full": "prefill", "sinks": "prefill", "snapkv": "behind", "blind": None}


class Server(EngineClient):
    """Answers what a server would, and keeps what it was asked."""

    def __init__(self, rest: list[int]) -> None:
        super().__init__("http://127.0.0.1:1/v1", "m")
        self.asked: dict[str, Any] = {}
        self.rest = rest

    def _post(self, path: str, body: Any) -> dict[str, Any]:
        self.asked = dict(body)
        tops = [{f"token_id:{token}": -1.0, "token_id:900": -0.5} for token in self.rest]
        told = {
            "tokens": [f"token_id:{token}" for token in self.rest],
            "token_logprobs": [-1.0] * len(self.rest),
            "top_logprobs": tops,
        }
        return {"choices": [{"logprobs": told}]}


PROMPT, ANSWER = tuple(range(100, 112)), (200, 201)


def test_three_quarters_are_the_prompt_and_the_rest_is_followed() -> None:
    """12 tokens: 9 are the prompt; 3 and the answer are decoded."""
    server = Server([109, 110, 111, 200, 201])
    score = server.score_behind(4, PROMPT, ANSWER)
    server.close()
    assert server.asked["prompt"] == list(range(100, 109))
    assert server.asked["vllm_xargs"] == {"forced": [109, 110, 111, 200, 201]}
    assert server.asked["max_tokens"] == 5
    # Place 9 is foretold by the prompt itself, before it is cut.
    assert (score.index, score.prompt_length, score.positions) == (4, 12, (10, 11, 12, 13))
    assert score.logprobs == (-1.0,) * 4
    assert score.ranks == (2,) * 4
    assert score.top_ids[0] == (900, 110)
    assert score.top_logprobs[0] == (-0.5, -1.0)


def test_a_server_that_decoded_something_else_gives_no_score() -> None:
    server = Server([109, 110, 111, 200, 999])
    score = server.score_behind(4, PROMPT, ANSWER)
    server.close()
    assert score.error is not None
    assert score.positions == ()
