"""What a host link must carry, worked by hand."""

from __future__ import annotations

import pytest

from harness.theory.offload import break_even_link, recompute_s


def test_a_link_that_carries_what_prefill_makes_fetches_as_fast_as_computing() -> None:
    # Llama 3 8B: 131,072 B per token; 8,000 tokens/s of prefill make 1.05 GB/s.
    link = break_even_link(131_072, 8000)
    assert link == pytest.approx(1.048576e9)
    # 16,384 tokens: 2.048 s of computing; their 2 GiB take as long over that link.
    assert recompute_s(16_384, 8000) == pytest.approx(2.048)
    assert 2 * 2**30 / link == pytest.approx(2.048)
