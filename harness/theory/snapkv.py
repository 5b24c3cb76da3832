"""Blocks that a request holds, and tokens that a step reads, once its prompt was cut by score.

The rule: a prompt is computed in one step with full attention; then ``budget`` tokens, rounded up
to whole blocks, stay of its whole blocks, and the partial block at its end stays as it is. Decoded
tokens are added behind them and never leave. Which tokens stay differs per layer and KV head; how
many does not, so blocks can be predicted. A prompt of fewer whole blocks than the budget's and one
more is left alone.

So a request holds at its worst moment what full attention holds, and the engine's advertised
concurrency is full attention's; only what a request holds while it decodes shrinks. Written from
the rule, not from the plugin. Not covered: requests that are thrown out and computed again, which
are cut anew with their decoded tokens among the prompt's.
"""

from __future__ import annotations

from harness.specs.eviction import SnapKvRule
from harness.units import Tokens


def snapkv_blocks_kept(rule: SnapKvRule, block_size: Tokens) -> int:
    """Whole blocks of the budget."""
    return -(-rule.budget // block_size)


def snapkv_dropped(rule: SnapKvRule, block_size: Tokens, prompt_tokens: Tokens) -> Tokens:
    """Tokens of a prompt that go, in whole blocks; 0 within the budget.

    2,500 tokens in blocks of 32 are 78 whole blocks and 4 tokens; a budget of 512 keeps 16 blocks:
    62 × 32 = 1,984 go and 516 stay.
    """
    whole = prompt_tokens // block_size
    return max(whole - snapkv_blocks_kept(rule, block_size), 0) * block_size


def snapkv_tokens_read(
    rule: SnapKvRule, block_size: Tokens, prompt_tokens: Tokens, context_tokens: Tokens
) -> Tokens:
    """Tokens that the newest of ``context_tokens`` attends to, itself included, while decoding.

    Per layer and KV head; ``context_tokens`` counts prompt and decoded tokens.
    """
    if context_tokens <= prompt_tokens:
        return context_tokens
    return context_tokens - snapkv_dropped(rule, block_size, prompt_tokens)


def snapkv_blocks_held(
    rule: SnapKvRule, block_size: Tokens, prompt_tokens: Tokens, context_tokens: Tokens
) -> int:
    """Blocks of a request while the newest of ``context_tokens`` is computed.

    With blocks of 32, a budget of 512 and 2,500 prompt tokens at 2,540: 80 blocks less 62 are 18.
    """
    read = snapkv_tokens_read(rule, block_size, prompt_tokens, context_tokens)
    return -(-read // block_size)


def snapkv_most_blocks_held(
    rule: SnapKvRule, block_size: Tokens, prompt_tokens: Tokens, context_tokens: Tokens
) -> int:
    """Blocks at the worst moment: the uncut prompt's, or those at the end of a long answer."""
    return max(
        -(-prompt_tokens // block_size),
        snapkv_blocks_held(rule, block_size, prompt_tokens, context_tokens),
    )


def note(rule: SnapKvRule, block_size: Tokens) -> str:
    """What a plan says of the rule."""
    kept = snapkv_blocks_kept(rule, block_size)
    return (
        f"token eviction by score ({rule}): {kept} blocks of {block_size} stay of each prompt once "
        "it is computed, beside its last partial block and what is decoded; a prompt needs all "
        "its blocks until then, so the pool's capacity and peak are full attention's; the engine "
        "refuses it on GPUs and without enable_chunked_prefill: false"
    )
