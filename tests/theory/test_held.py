"""Blocks of a request by rule: the counts of each rule's own tests, asked for through one door."""

from __future__ import annotations

from harness.specs.eviction import EvictionRule, SnapKvRule
from harness.theory.held import decoding_blocks, most_blocks


def test_blocks_while_decoding_follow_each_rule() -> None:
    """Blocks of 32, 1,536 tokens and 64 more.

    Everything: the last step has 1,599 tokens, 50 blocks. Sinks 32 and window 512: 17 or 18 as the
    window moves, so at most 18. SnapKV 512: 16 blocks of the prompt and 63 tokens, 18. One token of
    output is the prefill's: there is no decode step.
    """
    assert decoding_blocks(None, 32, 1536, 64) == 50
    assert decoding_blocks(EvictionRule(32, 512), 32, 1536, 64) == 18
    assert decoding_blocks(SnapKvRule(512), 32, 1536, 64) == 18
    assert decoding_blocks(None, 32, 1536, 1) is None


def test_the_worst_moment_follows_each_rule() -> None:
    """The same request, with steps of 256 tokens in flight.

    Everything: 1,600 tokens, 50 blocks. Sinks and window: 511 + 256 = 767 tokens are 24 blocks, one
    for the edge and one of sinks, 26; with 512 in flight 32 + 2 = 34. SnapKV: the uncut prompt, 48.
    """
    assert most_blocks(None, 32, 1536, 64, 256) == 50
    assert most_blocks(EvictionRule(32, 512), 32, 1536, 64, 256) == 26
    assert most_blocks(EvictionRule(32, 512), 32, 1536, 64, 512) == 34
    assert most_blocks(SnapKvRule(512), 32, 1536, 64, 256) == 48
