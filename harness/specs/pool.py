"""The engine's pool of KV blocks: which of them can hold tokens, and what its gauge counts.

Method: vLLM hands out all blocks of its pool but one, the null block, which fills the places of a
request that need none. ``vllm:kv_cache_usage_perc`` is a share (0–1) of those that it hands out,
so the share times their number is a whole number of blocks, up to the rounding of floats. Source:
vLLM 0.32.0, ``v1/core/block_pool.py`` (``null_block``, ``get_usage``). Not covered: what a block
stores (``theory.kv``).
"""

from __future__ import annotations

from harness.units import Fraction

NULL_BLOCKS = 1


def usable_blocks(num_blocks: int) -> int:
    """The blocks of a pool that requests can hold."""
    return max(num_blocks - NULL_BLOCKS, 0)


def blocks_in_use(share: Fraction | None, num_blocks: int | None) -> int | None:
    """The blocks that a reading of the gauge stands for; None without a reading or a pool."""
    if share is None or not num_blocks:
        return None
    return round(share * usable_blocks(num_blocks))
