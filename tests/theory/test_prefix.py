"""Blocks of requests that share a prefix, worked by hand."""

from __future__ import annotations

import pytest

from harness.theory.prefix import blocks_held, hit_tokens, requests_held, shared_blocks


def test_only_whole_blocks_of_a_prefix_are_shared() -> None:
    # 1,000 tokens are 7 blocks of 128 (896) and a rest; 127 tokens are none.
    assert shared_blocks(1000, 128) == 7
    assert shared_blocks(127, 128) == 0


def test_shared_blocks_are_held_once() -> None:
    # 40 requests of 9 blocks, 7 in common: 7 + 40 · 2 = 87; with nothing in common 40 · 9 = 360.
    assert blocks_held(40, 9, shared=7) == 87
    assert blocks_held(40, 9) == 360


def test_every_request_after_the_first_finds_the_shared_blocks() -> None:
    # 40 requests · 7 blocks · 128 tokens.
    assert hit_tokens(40, 7, 128) == 35_840


@pytest.mark.parametrize(
    ("usable", "shared", "held"),
    # 499 blocks hold all 40 that are sent; (27 - 7) / (9 - 7) = 10; 27 / 9 = 3; never none.
    [(499, 7, 40), (27, 7, 10), (27, 0, 3), (5, 0, 1)],
)
def test_no_more_requests_are_held_than_fit(usable: int, shared: int, held: int) -> None:
    assert requests_held(40, usable, 9, shared) == held
