"""The reference engine with the real embedded model: bytes to the token, time that grows or not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from harness.clock import Clock
from harness.engines import embedded
from harness.engines.reference import Generation, ReferenceEngine, ReferenceSpec
from harness.record import PlannedRequest

#: 2 (K and V) × 30 layers × 3 KV heads × 64 dimensions × 2 bytes.
BYTES_PER_TOKEN = 23_040
#: Ordinary pieces of text; which ones does not matter to time or memory.
PROMPT = tuple(range(1000, 1256))
OUTPUT = 8


def step_s(generation: Generation) -> float:
    times = generation.record.chunk_times_s
    return median(after - before for before, after in pairwise(times))


@pytest.mark.engine
def test_no_cache_a_growing_and_a_static_one_on_the_embedded_model(tmp_path: Path) -> None:
    folder = embedded.ensure("smollm2-135m-instruct")
    spec = ReferenceSpec(model=str(folder), offline=True)
    found: dict[str, Generation] = {}
    for cache, length in (("none", None), ("growing", None), ("static", 1024)):
        changed = replace(spec, cache=cache, max_cache_len=length)  # type: ignore[arg-type]
        engine = ReferenceEngine.launch(changed, tmp_path / cache, timeout_s=300)
        request = PlannedRequest(0, "measured", PROMPT, OUTPUT)
        found[cache] = engine.generate(request, Clock(), timeout_s=200)
        engine.stop()
    held = {cache: made.cache[-1].allocated_bytes for cache, made in found.items()}
    # The last token is generated, not kept: 256 + 8 − 1 = 263.
    assert held == {"none": 0, "growing": 263 * BYTES_PER_TOKEN, "static": 1024 * BYTES_PER_TOKEN}
    # 256 tokens through 135M parameters against one: far apart on any machine.
    assert step_s(found["none"]) > 3 * step_s(found["growing"])
