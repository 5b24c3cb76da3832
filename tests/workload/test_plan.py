from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from harness.errors import InputError
from harness.scenario import KvBudget, Trial, Workload
from harness.workload import SAFE_TOKENS, TokenRange, plan


def trial(seed: int = 1, **workload: Any) -> Trial:
    sizes = {"context_tokens": 64, "output_tokens": 8, "num_prompts": 20, **workload}
    if "request_rate" not in sizes:
        sizes.setdefault("concurrency", 4)
    return Trial(
        trial_id="t",
        scenario="s",
        profile="cpu",
        model="smollm2-135m-instruct",
        attach=None,
        variant="fp16",
        is_baseline=True,
        repeat=0,
        launch=0,
        flags={},
        env={},
        workload=Workload(**sizes),
        seed=seed,
        kv_budget=KvBudget(),
    )


def test_warm_ups_come_first_and_every_request_has_a_number_of_its_own():
    requests = plan(trial(warmup_requests=3), SAFE_TOKENS)
    assert [request.phase for request in requests] == ["warmup"] * 3 + ["measured"] * 20
    assert [request.index for request in requests] == list(range(23))


@pytest.mark.parametrize("length", [1, 2, 3, 64, 1000])
def test_prompts_have_the_exact_length_and_only_ids_of_the_range(length):
    tokens = TokenRange(100, 199)
    for request in plan(trial(context_tokens=length), tokens):
        assert len(request.prompt_token_ids) == length
        assert all(100 <= token <= 199 for token in request.prompt_token_ids)
        assert request.output_tokens == 8


def test_no_two_prompts_of_a_trial_begin_with_the_same_token():
    # 22 requests, 19,001 ids: a single id is enough to tell them apart.
    requests = plan(trial(), SAFE_TOKENS)
    assert len({request.prompt_token_ids[0] for request in requests}) == 22


def test_few_ids_still_give_prompts_that_differ_within_their_first_tokens():
    # 10 ids: 2 + 500 prompts need three digits (10² = 100 < 502 ≤ 10³), and one more is used.
    requests = plan(trial(num_prompts=500), TokenRange(0, 9))
    assert len({request.prompt_token_ids[:4] for request in requests}) == 502


def test_prompts_as_short_as_can_be_are_still_unique():
    requests = plan(trial(context_tokens=1, num_prompts=10, warmup_requests=0), TokenRange(0, 9))
    assert len({request.prompt_token_ids for request in requests}) == 10


def test_more_prompts_than_the_ids_allow_are_refused():
    with pytest.raises(InputError, match="11 different prompts of 1 tokens"):
        plan(trial(context_tokens=1, num_prompts=11, warmup_requests=0), TokenRange(0, 9))


def test_the_same_trial_gives_the_same_plan_whatever_its_variant():
    other = dataclasses.replace(trial(), variant="fp8", flags={"kv_cache_dtype": "fp8"})
    assert plan(trial(), SAFE_TOKENS) == plan(other, SAFE_TOKENS)


def test_repeats_share_no_prompt():
    first = {request.prompt_token_ids[:16] for request in plan(trial(seed=1), SAFE_TOKENS)}
    second = {request.prompt_token_ids[:16] for request in plan(trial(seed=2), SAFE_TOKENS)}
    assert not first & second


def test_a_closed_loop_has_no_due_times():
    assert all(request.planned_send_s is None for request in plan(trial(), SAFE_TOKENS))


def test_an_open_loop_has_due_times_for_the_measured_requests_alone():
    requests = plan(trial(request_rate=5.0, num_prompts=200), SAFE_TOKENS)
    assert [request.planned_send_s for request in requests[:2]] == [None, None]
    due = [request.planned_send_s for request in requests[2:]]
    assert due[0] == 0.0
    assert due == sorted(due)
    # 199 gaps of 0.2 s on average are 39.8 s; their sum has a spread of 0.2 · sqrt(199) = 2.8 s.
    assert due[-1] == pytest.approx(39.8, abs=9)
