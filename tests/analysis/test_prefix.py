from __future__ import annotations

from typing import Any

from harness.analysis.prefix import sharings
from harness.record import EngineSample, TrialRecord
from tests.analysis.strategy_build import analysed, record, request


def shared(blocks_in_use: int, hits: float, **changes: Any) -> TrialRecord:
    """40 requests of 1,025 + 64 tokens with 1,000 in common, on 499 usable blocks."""
    given: dict[str, Any] = {
        "context_tokens": 1025,
        "output_tokens": 64,
        "num_prompts": 40,
        "concurrency": 40,
        "warmup_requests": 1,
        "shared_prefix_tokens": 1000,
        "caching": True,
        "blocks": 500,
        **changes,
    }
    samples = (
        EngineSample(0.0, kv_cache_usage=0.0, prefix_cache_hits_total=5.0),
        EngineSample(5.0, kv_cache_usage=blocks_in_use / 499, prefix_cache_hits_total=5.0),
        EngineSample(10.0, kv_cache_usage=0.0, prefix_cache_hits_total=5.0 + hits),
    )
    return record(requests=(request(0, 1025, 64),), samples=samples, **given)


def test_a_shared_prefix_is_predicted_and_measured_to_the_block() -> None:
    # floor(1000 / 128) = 7 shared blocks; ceil(1089 / 128) = 9 each; 7 + 40 · 2 = 87;
    # 40 requests find 7 · 128 = 896 tokens: 35,840
    made = shared(87, 35840.0)
    (found,) = sharings(analysed(made)[1].trials, [made])
    assert (found.shared_blocks, found.blocks_per_request, found.requests) == (7, 9, 40)
    assert (found.predicted_blocks, found.measured_blocks) == (87, 87)
    assert (found.predicted_hit_tokens, found.measured_hit_tokens) == (35840, 35840)
    assert found.exact


def test_without_caching_every_request_holds_its_own_blocks() -> None:
    made = shared(360, 0.0, caching=False)
    (found,) = sharings(analysed(made)[1].trials, [made])
    assert (found.predicted_blocks, found.predicted_hit_tokens) == (360, 0)
    assert found.exact


def test_a_block_too_many_is_not_exact() -> None:
    made = shared(88, 35840.0)
    (found,) = sharings(analysed(made)[1].trials, [made])
    assert found.exact is False


def test_a_prefix_shorter_than_a_block_shares_nothing() -> None:
    made = shared(32, 0.0, context_tokens=192, output_tokens=16, shared_prefix_tokens=127)
    (found,) = sharings(analysed(made)[1].trials, [made])
    # ceil(208 / 128) = 2 blocks × 40
    assert (found.shared_blocks, found.predicted_blocks, found.predicted_hit_tokens) == (0, 80, 0)


def test_without_a_warm_up_the_first_request_finds_nothing() -> None:
    made = shared(87, 34944.0, warmup_requests=0)
    (found,) = sharings(analysed(made)[1].trials, [made])
    assert found.predicted_hit_tokens == 39 * 896
