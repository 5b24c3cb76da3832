from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.offload import effective_link, returning_turns
from harness.record import EngineSample, TrialRecord
from harness.theory.offload import break_even_link
from tests.analysis.strategy_build import record, request


def played(variant: str, waits: tuple[float, float], cached: int, **flags: float) -> TrialRecord:
    """Two conversations of two turns, 500 and 1,000 tokens; ``waits`` are the turns' TTFT."""
    requests = [
        replace(
            request(turn * 2 + session, 500 * (turn + 1), 2, sent=0.0, first=waits[turn]),
            cached_prompt_tokens=cached if turn else 0,
        )
        for turn in range(2)
        for session in range(2)
    ]
    made = record(variant, requests=tuple(requests), flags=flags, turns=2, context_tokens=1000)
    last = EngineSample(9.0, external_cache_hits_total=768.0 if flags else None)
    return replace(made, engine_samples=(last,))


def test_turns_are_told_apart_by_their_prompts() -> None:
    (found,) = returning_turns([played("gpu", (0.5, 0.9), 256)])
    first, second = found.turns
    assert (first.number, first.prompt_tokens, first.requests) == (1, 500, 2)
    assert (first.ttft_p50_s, first.cached_fraction) == (0.5, 0.0)
    assert (second.ttft_p50_s, second.cached_fraction) == (0.9, 0.256)
    # 500 tokens in 0.5 s
    assert found.prefill_tokens_per_s == pytest.approx(1000)
    assert not found.offloads
    assert found.fetched_tokens is None


def test_fetched_tokens_are_the_engines_count_over_the_repeats() -> None:
    on = played("offload", (0.5, 0.6), 768, kv_offloading_size=1.0)
    (found,) = returning_turns([on, on])
    assert found.offloads
    assert found.fetched_tokens == 2 * 768
    assert found.turns[1].requests == 4


def test_a_repeat_that_was_never_scraped_leaves_the_sum_unknown() -> None:
    """768 tokens of one repeat are no total of two."""
    on = played("offload", (0.5, 0.6), 768, kv_offloading_size=1.0)
    (found,) = returning_turns([on, replace(on, engine_samples=())])
    assert found.fetched_tokens is None


def test_a_count_that_the_server_does_not_tell_is_unknown() -> None:
    made = played("gpu", (0.5, 0.9), 256)
    silent = tuple(replace(r, cached_prompt_tokens=None) for r in made.requests)
    (found,) = returning_turns([replace(made, requests=silent)])
    assert found.turns[1].cached_fraction is None


def test_the_links_rate_is_what_is_left_of_the_wait_beyond_computing_the_rest() -> None:
    # 1,000 tokens/s of prefill. Of 1,000 tokens 384 are found, so 616 take 0.616 s to compute; of
    # the 0.7 s waited 84 ms are left for fetching. Both conversations found 2 · 384 = 768, and all
    # of them were fetched: 384 · 23,040 B / 0.084 s = 105.3 MB/s.
    (found,) = returning_turns([played("offload", (0.5, 0.7), 384, kv_offloading_size=1.0)])
    assert effective_link(found, 23_040) == pytest.approx(384 * 23_040 / 0.084)
    # More than the 23 MB/s that prefill makes: fetching wins.
    assert (effective_link(found, 23_040) or 0) > break_even_link(23_040, 1000)


def test_tokens_that_the_pool_still_held_were_not_fetched() -> None:
    on = played("offload", (0.5, 0.7), 384, kv_offloading_size=1.0)
    half = replace(on, engine_samples=(EngineSample(9.0, external_cache_hits_total=384.0),))
    (found,) = returning_turns([half])
    assert effective_link(found, 23_040) == pytest.approx(192 * 23_040 / 0.084)


@pytest.mark.parametrize("waits", [(0.5, 0.6), (0.5, 0.616)])
def test_a_wait_without_time_left_over_has_no_rate(waits: tuple[float, float]) -> None:
    (found,) = returning_turns([played("offload", waits, 384, kv_offloading_size=1.0)])
    assert effective_link(found, 23_040) is None


def test_what_was_not_fetched_has_no_rate() -> None:
    (found,) = returning_turns([played("gpu", (0.5, 0.7), 384)])
    assert effective_link(found, 23_040) is None


def test_loads_that_do_not_return_have_no_turns() -> None:
    assert returning_turns([record(requests=(request(0, 500, 2),))]) == ()
