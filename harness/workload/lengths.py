"""How long each request of a load is: all alike, a seeded long-tailed mix, or growing turns.

Method: a mix is log-normal (Limpert, Stahel and Abbt 2001, "Log-normal distributions across the
sciences"): the logarithm of a length is normal around that of the median, so that most requests
are short and a few are very long, as the traffic of chat services is. Lengths are rounded and cut
at 1 and at the workload's own. Prompt and output are drawn independently of one another.

Not covered: lengths read from traces, and outputs that depend on their prompt.
"""

from __future__ import annotations

import math
import random

from harness.scenario import Workload
from harness.units import Tokens


def request_lengths(workload: Workload, count: int, seed: int) -> tuple[tuple[Tokens, Tokens], ...]:
    """(prompt, output) tokens of ``count`` requests; the same seed gives the same lengths."""
    mix = workload.length_mix
    if mix is None:
        return ((workload.context_tokens, workload.output_tokens),) * count
    rng = random.Random(f"{seed}/lengths")  # noqa: S311 - reproducible, not secret
    outputs = mix.output_median
    return tuple(
        (
            _draw(rng, mix.context_median, mix.sigma, workload.context_tokens),
            workload.output_tokens
            if outputs is None
            else _draw(rng, outputs, mix.sigma, workload.output_tokens),
        )
        for _ in range(count)
    )


def _draw(rng: random.Random, median: Tokens, sigma: float, longest: Tokens) -> Tokens:
    return min(max(round(rng.lognormvariate(math.log(median), sigma)), 1), longest)


def turn_length(workload: Workload, turn: int) -> Tokens:
    """Prompt tokens of a conversation's turn, counted from 0: equal parts of ``context_tokens``."""
    return workload.context_tokens * (turn + 1) // (workload.turns or 1)
