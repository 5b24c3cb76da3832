"""The real server with and without the rule: capacity, blocks held, text, perplexity.

One text of 3,000 tokens, blocks of 32, chunks of 256, a pool of 1 GiB: 1,456 blocks of the embedded
model. Four starts serve all checks. The figures of other block and chunk sizes, of preemption and
of crowded pools come from ``measure.py``.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from harness.engines import models, vllm
from harness.engines.eviction.evidence import require_in_force
from harness.errors import ServerStartError
from tests.engines.eviction.driving import (
    FLAGS,
    LENGTH,
    MODEL,
    Seen,
    evicting,
    perplexity,
    reference,
    served,
    span,
)

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def inert(folder: Path) -> Seen:
    """The engine with our plugin loaded and nothing asked of it."""
    return served(folder, {})


@pytest.fixture(scope="module")
def sinks(folder: Path) -> Seen:
    return served(folder, evicting(32, 512), decoding=True, crowded=True)


@pytest.fixture(scope="module")
def no_sinks(folder: Path) -> Seen:
    return served(folder, evicting(0, 512))


def test_unasked_the_plugin_changes_nothing(stock: Seen, inert: Seen) -> None:
    assert inert.granted == stock.granted
    assert inert.texts == stock.texts
    assert inert.logprobs == stock.logprobs
    assert "eviction" not in inert.log


def test_the_server_says_that_the_rule_is_in_force(sinks: Seen) -> None:
    require_in_force(evicting(32, 512), sinks.log)
    assert sinks.log.count("KV eviction in force") == 1
    assert "blocks of 32 tokens, at most 26 blocks per request" in sinks.log


def test_the_advertised_concurrency_is_as_predicted(
    stock: Seen, sinks: Seen, no_sinks: Seen
) -> None:
    """A pool of 1,456 blocks, max_model_len 4,096.

    Full attention: 4,096 / 32 = 128 blocks per request, 1,456 / 128 = 11.375. Window 512 in chunks
    of 256: ceil((511 + 256) / 32) + 1 = 25 blocks, 58.24 requests; with the sinks' block 26, 56.0.
    """
    pools = [seen.granted.num_gpu_blocks for seen in (stock, sinks, no_sinks)]
    assert pools == [1456, 1456, 1456]
    told = [seen.granted.max_concurrency for seen in (stock, sinks, no_sinks)]
    assert told == [11.375, 56.0, 58.24]


def test_a_long_request_holds_sinks_and_window_only(stock: Seen, sinks: Seen) -> None:
    """3,000 tokens of prompt and 128 of output.

    Full attention: ceil(3,128 / 32) = 98 blocks. The window spans at most 512 / 32 + 1 = 17 blocks
    and the sinks one: 18. While a chunk of 256 is computed 8 more are in flight, 26 at most.
    Only in one step of 32 does the window begin with a block: 17, which a reading may miss.
    """
    for reading in stock.decoding:
        assert math.ceil((LENGTH + reading.tokens - 1) / 32) <= reading.blocks <= 98
    assert stock.decoding[-1].blocks == 98
    assert {18} <= {reading.blocks for reading in sinks.decoding} <= {17, 18}
    assert round(max(use.blocks for use in sinks.throughout)) in range(18, 27)


def test_text_within_the_budget_is_the_stock_engines_to_the_byte(stock: Seen, sinks: Seen) -> None:
    assert sinks.texts == stock.texts
    assert sinks.logprobs[:500] == stock.logprobs[:500]


def test_sinks_keep_the_perplexity_near_full_attention(
    stock: Seen, sinks: Seen, no_sinks: Seen
) -> None:
    full, kept, bare = (
        perplexity(span(seen.logprobs, 1000, LENGTH)) for seen in (stock, sinks, no_sinks)
    )
    assert kept < 1.15 * full
    assert kept < 0.70 * bare


def test_an_explicit_mask_in_fp32_agrees_in_every_bucket(sinks: Seen) -> None:
    rule = {"sinks": 32, "window": 512, "block": 32, "chunk": 256}
    (expected,) = reference(sinks.tokens, [rule])
    for first in range(0, LENGTH, 500):
        own, other = (
            perplexity(span(found, max(first, 1), first + 500))
            for found in (sinks.logprobs, expected)
        )
        assert own == pytest.approx(other, rel=0.01)


def test_prefill_and_decode_mix_and_every_block_comes_back(sinks: Seen) -> None:
    assert len(sinks.crowd) == 4
    assert all(len(text) > 20 for text in sinks.crowd)
    assert (sinks.after.blocks, sinks.after.running, sinks.after.preemptions) == (0.0, 0.0, 0.0)


def test_a_rule_that_can_not_be_read_ends_the_start(folder: Path) -> None:
    model = models.resolve(MODEL)
    spec = vllm.ServerSpec(model.argument, FLAGS, {"KVBENCH_EVICTION": "sinks=32"}, model.offline)
    with pytest.raises(ServerStartError) as caught:
        vllm.Server.launch(spec, folder / "refused.log", timeout_s=120)
    assert "the eviction rule 'sinks=32' lacks window" in str(caught.value)
