"""Blocks of requests in flight, with and without a prefix that they share.

Method: only whole blocks can be shared, so a prefix of P tokens has floor(P / block) of them, and
the rest of it is stored by every request. Without sharing n requests hold n times their own
blocks; with it they hold the shared ones once and n times the others. As many requests are held
as are sent and fit, and at least one, since the engine starts no server that can't hold one.

Source: the chapter's claim C8; vLLM 0.32.0 hashes full blocks only (``v1/core/kv_cache_utils.py``).
Not covered: models with windows or states, whose groups share blocks by rules of their own.
"""

from __future__ import annotations

from harness.units import Tokens


def shared_blocks(prefix: Tokens, block_size: Tokens) -> int:
    """Whole blocks of a common prefix: none if it is shorter than one, the copy-free floor."""
    return prefix // block_size


def requests_held(sent: int, usable_blocks: int, blocks_each: int, shared: int = 0) -> int:
    """Requests in the pool at once: those sent, as far as they fit beside the shared blocks."""
    return min(sent, max((usable_blocks - shared) // (blocks_each - shared), 1))


def blocks_held(requests: int, blocks_each: int, shared: int = 0) -> int:
    """Blocks of so many requests, the shared ones counted once."""
    return shared + requests * (blocks_each - shared)


def hit_tokens(requests: int, shared: int, block_size: Tokens) -> Tokens:
    """Prompt tokens that so many requests find stored by one before them."""
    return requests * shared * block_size
