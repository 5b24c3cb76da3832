"""When is it faster to fetch keys and values from host memory than to compute them again?

Method: n tokens are computed again in n / (prefill tokens/s), and fetched in n · (bytes per token)
/ (link bytes/s). Fetching is faster when the link carries more bytes per second than prefill would
make: link > bytes per token × prefill tokens/s, whatever n is.

Source: the chapter's claim C14. Not covered: fetching that overlaps with computing, and fixed
costs per transfer.
"""

from __future__ import annotations

from harness.units import Seconds, Tokens


def recompute_s(tokens: Tokens, prefill_tokens_per_s: float) -> Seconds:
    """Seconds to compute the keys and values of so many tokens again."""
    return tokens / prefill_tokens_per_s


def break_even_link(bytes_per_token: float, prefill_tokens_per_s: float) -> float:
    """Bytes/s that a host link must carry so that fetching is no slower than computing again."""
    return bytes_per_token * prefill_tokens_per_s
