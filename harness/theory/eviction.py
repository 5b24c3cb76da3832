"""Blocks that a request holds, and tokens that a step reads, when its middle is evicted.

The rule: the first ``sinks`` tokens stay, rounded up to whole blocks, and so does every block that
reaches into the window of the next token; the blocks between go back to the pool before each
step. So a decoding request holds a constant number of blocks (give or take one, as the window
moves across block edges), and only tokens in flight come on top while a prompt is computed.

Not covered: eviction by score inside the engine (``snapkv``), and layers of unlike pages. Written
from the rule, not from the plugin; the plugin's own figures are held against these.
"""

from __future__ import annotations

from functools import lru_cache

from harness.specs.eviction import EvictionRule
from harness.units import Fraction, Tokens


def sink_blocks(rule: EvictionRule, block_size: Tokens) -> int:
    """Whole blocks that hold the sinks."""
    return -(-rule.sinks // block_size)


def first_kept_block(rule: EvictionRule, block_size: Tokens, computed: Tokens) -> int:
    """Index of the first block that reaches into the window of the token after ``computed``."""
    return max(computed - rule.window + 1, 0) // block_size


def blocks_held(
    rule: EvictionRule, block_size: Tokens, computed: Tokens, new_tokens: Tokens = 1
) -> int:
    """Blocks of a request in a step that adds ``new_tokens`` to ``computed`` ones.

    With sinks 32, window 512 and blocks of 32 at 3,071 computed tokens: the window begins at
    3,071 − 511 = 2,560, block 80; block 95 is the last: 16 blocks and the sinks' one.
    """
    all_blocks = -(-(computed + new_tokens) // block_size)
    kept_from = first_kept_block(rule, block_size, computed)
    return all_blocks - max(kept_from - sink_blocks(rule, block_size), 0)


def most_blocks_held(
    rule: EvictionRule, block_size: Tokens, context_tokens: Tokens, tokens_in_flight: Tokens
) -> int:
    """Blocks of a request of ``context_tokens`` at its worst moment, as the engine admits it.

    The window and the tokens in flight, one block more as they need not begin at a block's edge,
    and the sinks; never more than the whole context needs.
    """
    window = min(rule.window - 1 + tokens_in_flight, context_tokens)
    widest = -(-window // block_size) + 1 + sink_blocks(rule, block_size)
    return min(widest, -(-context_tokens // block_size))


def pairs_of_step(
    rule: EvictionRule, block_size: Tokens, computed: Tokens, new_tokens: Tokens
) -> int:
    """Query-key pairs of a step that adds ``new_tokens`` to ``computed`` ones.

    Each new token sees what was kept before the step, and the step's own tokens up to itself.
    With sinks 32, window 512, blocks of 32 and 256 tokens after 1,024: the window begins at 513,
    block 16; 15 blocks (480 tokens) are gone and 544 kept: 256 × 544 + 256 × 257 / 2 = 172,160.
    """
    kept = computed - _dropped(rule, block_size, computed)
    return new_tokens * kept + new_tokens * (new_tokens + 1) // 2


@lru_cache(maxsize=256)
def least_prefill_pairs(rule: EvictionRule, block_size: Tokens, prompt_tokens: Tokens) -> int:
    """Query-key pairs of a prompt that is computed token by token: no cut into steps has fewer."""
    steps = range(prompt_tokens)
    return sum(pairs_of_step(rule, block_size, computed, 1) for computed in steps)


def tokens_read(rule: EvictionRule, block_size: Tokens, context_tokens: Tokens) -> Tokens:
    """Tokens whose keys and values the newest of ``context_tokens`` attends to, itself included."""
    return context_tokens - _dropped(rule, block_size, max(context_tokens - 1, 0))


def kept_by_ratio(prefill_tokens: Tokens, ratio: Fraction) -> Tokens:
    """Tokens that a policy leaves of a prefill, per layer and KV head: 511 of 1,536 at 0.667."""
    return int(prefill_tokens * (1.0 - ratio))


def _dropped(rule: EvictionRule, block_size: Tokens, computed: Tokens) -> Tokens:
    """Tokens of the blocks that are gone once ``computed`` tokens are there."""
    kept_from = first_kept_block(rule, block_size, computed)
    return max(kept_from - sink_blocks(rule, block_size), 0) * block_size
