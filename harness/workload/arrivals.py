"""When the requests of an open loop are due: a renewal process with gamma gaps.

The gaps between arrivals are gamma-distributed with shape ``burstiness`` and mean
``1 / request_rate``: shape 1 is a Poisson process, below 1 arrivals come in bursts, above 1 they
even out towards a fixed beat. It is the process that ``vllm bench serve`` draws from.

Not covered: ramps, traces, and rates that change over time.
"""

from __future__ import annotations

import random

from harness.units import Seconds


def arrival_times(
    count: int, request_rate: float, burstiness: float, rng: random.Random
) -> tuple[Seconds, ...]:
    """Return ``count`` due times in seconds after the load starts; the first is due at once.

    A gamma variable of shape k and scale θ has mean k·θ, hence the scale 1 / (rate · k).
    """
    scale = 1.0 / (request_rate * burstiness)
    due = 0.0
    times: list[Seconds] = []
    for _ in range(count):
        times.append(due)
        due += rng.gammavariate(burstiness, scale)
    return tuple(times)
