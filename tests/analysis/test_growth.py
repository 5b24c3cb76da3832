from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.growth import growths
from harness.record import ProcessSample, TrialRecord
from tests.analysis.strategy_build import analysed, record, request, scrapes
from tests.records import BF16_BYTES_PER_TOKEN

BLOCK_BYTES = 128 * BF16_BYTES_PER_TOKEN


def point(
    context: int, peak_blocks: int, concurrency: int = 1, memory_bytes: int = 1 << 30
) -> TrialRecord:
    """A trial whose gauge peaks at so many of its 40 usable blocks."""
    made = record(
        requests=tuple(request(i, context, 8) for i in range(concurrency)),
        samples=scrapes((1.0, 0.0, 0.0), (2.0, peak_blocks / 40, concurrency), (3.0, 0.0, 0.0)),
        context_tokens=context,
        output_tokens=8,
        num_prompts=concurrency,
        concurrency=concurrency,
    )
    memory = tuple(ProcessSample(t, memory_bytes + context, 1) for t in (1.0, 2.0))
    return TrialRecord(
        made.run, made.requests, process_samples=memory, engine_samples=made.engine_samples
    )


def test_points_that_follow_the_formula_are_exact_and_their_slope_is_its_rate() -> None:
    # 120 + 8, 376 + 8, 632 + 8 tokens are 1, 3, 5 blocks: 256 tokens of context, 2 blocks
    _, analysis = analysed(point(120, 1), point(376, 3), point(632, 5))
    (growth,) = growths(analysis)
    assert [p.measured_bytes for p in growth.points] == [BLOCK_BYTES * n for n in (1, 3, 5)]
    assert [p.error_fraction for p in growth.points] == [0.0, 0.0, 0.0]
    assert growth.bytes_per_token == pytest.approx(BF16_BYTES_PER_TOKEN)
    assert growth.predicted_bytes_per_token == BF16_BYTES_PER_TOKEN
    # resident memory moved from 1 GiB + 120 to 1 GiB + 632
    assert growth.device_span_bytes == 512
    assert growth.device_flat


def test_several_requests_are_predicted_together_and_do_not_bend_the_line() -> None:
    _, analysis = analysed(
        point(120, 1), point(376, 3), point(632, 5), point(376, 12, concurrency=4)
    )
    (growth,) = growths(analysis)
    together = growth.points[-1]
    assert (together.requests, together.predicted_bytes) == (4, 12 * BLOCK_BYTES)
    assert together.within_a_block
    assert growth.bytes_per_token == pytest.approx(BF16_BYTES_PER_TOKEN)


def test_a_point_a_block_or_more_off_is_told() -> None:
    _, analysis = analysed(point(120, 1), point(376, 5), point(632, 5))
    (growth,) = growths(analysis)
    assert [p.within_a_block for p in growth.points] == [True, False, True]
    # 5 blocks for 3
    assert growth.points[1].error_fraction == pytest.approx(2 / 3)


def test_two_contexts_are_no_line() -> None:
    _, analysis = analysed(point(120, 1), point(376, 3))
    assert growths(analysis) == ()


def test_device_memory_that_moves_by_more_than_two_per_cent_is_not_flat() -> None:
    # From 17,000 + 120 to 17,000 + 632 bytes: 512 of 17,632 are 2.9 %.
    sizes = ((120, 1), (376, 3), (632, 5))
    _, analysis = analysed(*(point(*size, memory_bytes=17_000) for size in sizes))
    (growth,) = growths(analysis)
    assert growth.device_span_bytes == 512
    assert growth.device_flat is False


def test_device_memory_that_nobody_read_is_neither_flat_nor_not() -> None:
    sizes = ((120, 1), (376, 3), (632, 5))
    silent = [replace(point(*size), process_samples=()) for size in sizes]
    (growth,) = growths(analysed(*silent)[1])
    assert (growth.device_span_bytes, growth.device_flat) == (None, None)
