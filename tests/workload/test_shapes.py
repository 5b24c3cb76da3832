"""Plans whose requests differ from one another: mixes, shared prefixes, returning conversations."""

from __future__ import annotations

from harness.workload import SAFE_TOKENS, plan
from tests.workload.test_plan import trial


def test_a_shared_prefix_stands_before_every_prompt_and_nothing_more_is_shared() -> None:
    requests = plan(
        trial(context_tokens=80, shared_prefix_tokens=50, warmup_requests=2), SAFE_TOKENS
    )
    prompts = [request.prompt_token_ids for request in requests]
    assert len({prompt[:50] for prompt in prompts}) == 1
    assert all(len(prompt) == 80 for prompt in prompts)
    # No two go on alike: the next block of one is never found by another.
    assert len({prompt[50] for prompt in prompts}) == len(prompts) == 22


def test_another_repeat_shares_another_prefix() -> None:
    one, two = (
        plan(trial(seed, context_tokens=80, shared_prefix_tokens=50), SAFE_TOKENS)[0]
        for seed in (1, 2)
    )
    assert one.prompt_token_ids[:50] != two.prompt_token_ids[:50]


def test_a_returning_conversation_repeats_what_came_before_and_adds_to_it() -> None:
    load = trial(context_tokens=90, num_prompts=12, turns=3, warmup_requests=1)
    warmup, *rest = plan(load, SAFE_TOKENS)
    assert len(warmup.prompt_token_ids) == 30
    assert [len(request.prompt_token_ids) for request in rest] == [30] * 4 + [60] * 4 + [90] * 4
    for session in range(4):
        first, second, third = (rest[turn * 4 + session].prompt_token_ids for turn in range(3))
        assert second[:30] == first
        assert third[:60] == second
    starts = {request.prompt_token_ids[:2] for request in (warmup, *rest)}
    assert len(starts) == 5


def test_prompts_of_a_mix_have_their_drawn_lengths_and_begin_differently() -> None:
    mix = {"context_median": 20, "output_median": 4, "sigma": 1.0}
    requests = plan(trial(context_tokens=64, length_mix=mix), SAFE_TOKENS)
    lengths = [len(request.prompt_token_ids) for request in requests]
    assert max(lengths) <= 64
    assert len(set(lengths)) > 5
    assert len({request.output_tokens for request in requests}) > 2
    assert len({request.prompt_token_ids[0] for request in requests}) == len(requests)
    assert requests == plan(trial(context_tokens=64, length_mix=mix), SAFE_TOKENS)
