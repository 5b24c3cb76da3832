"""The null block and what the gauge counts, worked by hand."""

from __future__ import annotations

from harness.specs.pool import blocks_in_use, usable_blocks


def test_one_block_of_a_pool_holds_nothing() -> None:
    assert usable_blocks(81) == 80
    assert usable_blocks(1) == 0
    assert usable_blocks(0) == 0


def test_a_reading_of_the_gauge_is_a_whole_number_of_blocks() -> None:
    # 1 − 73 / 80 is 0.08750000000000002 to a float: 7 blocks, and a trace that is none.
    assert 1.0 - 73 / 80 != 7 / 80
    assert blocks_in_use(1.0 - 73 / 80, 81) == 7
    assert blocks_in_use(0.0, 81) == 0


def test_without_a_reading_or_a_pool_it_is_unknown() -> None:
    assert blocks_in_use(None, 81) is None
    assert blocks_in_use(0.5, None) is None
