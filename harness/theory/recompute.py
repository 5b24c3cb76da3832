"""How many keys and values are computed, with a cache and without one: counting, no timing.

Step i of a generation (i = 1 … output) sees prompt + i − 1 tokens. Without a cache it computes
the keys and values of all of them; with one, step 1 computes the prompt's and every later step
one token's. What is computed a second time is redundant.

Source: the chapter's claim C1, counted step by step. Its 750,000 for 500 tokens after a prompt of
1,000 takes every step at the final length (500 × 1,500); the sum is 624,750, of which 1,499 are
first computations. Not covered: what a computation costs.
"""

from __future__ import annotations

from harness.units import Tokens


def kv_computations(prompt: Tokens, output: Tokens, *, cached: bool) -> int:
    """Token positions whose keys and values are computed to generate ``output`` tokens."""
    if output < 1:
        return 0
    later = output - 1
    if cached:
        return prompt + later
    return output * prompt + output * later // 2


def redundant_kv_computations(prompt: Tokens, output: Tokens) -> int:
    """Those that a cache would have spared."""
    return kv_computations(prompt, output, cached=False) - kv_computations(
        prompt, output, cached=True
    )
