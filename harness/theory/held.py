"""Blocks that a request holds under whichever rule of token eviction its server follows, if any.

Method: the rules of ``eviction`` (sinks and a window) and of ``snapkv`` (a prompt cut by score),
told apart in this one place; without a rule a request holds all its tokens. Not covered: models
whose layers do not all follow the rule (windows, states), which ``capacity`` counts by group.
"""

from __future__ import annotations

from harness.specs.eviction import AnyRule, EvictionRule, SnapKvRule
from harness.theory.eviction import blocks_held, most_blocks_held
from harness.theory.snapkv import snapkv_blocks_held, snapkv_most_blocks_held
from harness.units import Tokens


def most_blocks(
    rule: AnyRule | None,
    block_size: Tokens,
    prompt: Tokens,
    output: Tokens,
    tokens_in_flight: Tokens,
) -> int:
    """The most blocks that a request may hold at any moment, as the engine admits it."""
    total = prompt + output
    if isinstance(rule, EvictionRule):
        return most_blocks_held(rule, block_size, total, tokens_in_flight)
    if isinstance(rule, SnapKvRule):
        return snapkv_most_blocks_held(rule, block_size, prompt, total)
    return -(-total // block_size)


def decoding_blocks(
    rule: AnyRule | None, block_size: Tokens, prompt: Tokens, output: Tokens
) -> int | None:
    """The most blocks that a request holds at any of its decode steps; None if it has none.

    The last token is never fed back, so the longest step has ``prompt + output − 1`` tokens.
    """
    contexts = range(prompt + 1, prompt + output)
    if isinstance(rule, EvictionRule):
        return max((blocks_held(rule, block_size, n - 1) for n in contexts), default=None)
    if isinstance(rule, SnapKvRule):
        held = (snapkv_blocks_held(rule, block_size, prompt, n) for n in contexts)
        return max(held, default=None)
    return -(-contexts[-1] // block_size) if contexts else None
