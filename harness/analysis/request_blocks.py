"""How many blocks of the pool one running request held, at the most.

Method: at each reading of the engine during the measured phase, the blocks in use over the running
requests. A reading at which fewer requests run than hold blocks (one was just admitted, or has
just gone) would make that too large, so only those count at which as many ran at the readings
before and after. Not covered: requests of different lengths, of which this is the mean.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.analysis.metrics import phase
from harness.record import EngineSample, TrialRecord
from harness.specs.pool import blocks_in_use

#: Whether a reading counts, by the readings before and after it.
Where = Callable[[EngineSample, EngineSample], bool]


def blocks_per_running_request(
    record: TrialRecord, num_blocks: int, *, where: Where | None = None
) -> float | None:
    """The largest number of blocks per running request; None where no reading is clear.

    ``num_blocks`` are all blocks of the pool, as the engine prints them.
    """
    span = phase(record.run)
    if span is None:
        return None
    samples = [sample for sample in record.engine_samples if span[0] <= sample.t_s <= span[1]]
    counted = (
        _each(sample, num_blocks)
        for before, sample, after in zip(samples, samples[1:], samples[2:], strict=False)
        if before.requests_running == sample.requests_running == after.requests_running
        and (where is None or where(before, after))
    )
    return max((each for each in counted if each is not None), default=None)


def _each(sample: EngineSample, num_blocks: int) -> float | None:
    held = blocks_in_use(sample.kv_cache_usage, num_blocks)
    if held is None or not sample.requests_running:
        return None
    return held / sample.requests_running
