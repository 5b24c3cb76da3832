"""Latencies of single requests, and how many of them become one figure.

Definitions are those of DESIGN section 5, which are those of ``vllm bench serve``: TTFT from the
actual send to the first content chunk, E2EL to the last, TPOT their difference over the output
tokens but one, ITL the gaps between content chunks pooled over requests. Percentiles are linearly
interpolated, as numpy does by default. Not covered: which requests count (``metrics``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from harness.analysis.results import Distribution
from harness.analysis.stats import percentiles
from harness.record import RequestRecord
from harness.units import Seconds

Values = npt.NDArray[np.float64]

#: Below this many values a 99th percentile is little more than the largest of them.
P99_NEEDS = 100


def is_completed(request: RequestRecord) -> bool:
    """Whether the request came to its end without an error."""
    return request.error is None and request.finished_s is not None


def ttft(request: RequestRecord) -> Seconds | None:
    """First content chunk − actual send; None if there was no chunk."""
    return None if request.first_chunk_s is None else request.first_chunk_s - request.sent_s


def e2el(request: RequestRecord) -> Seconds | None:
    """Last content chunk − actual send; None if there was no chunk."""
    return None if request.last_chunk_s is None else request.last_chunk_s - request.sent_s


def tpot(request: RequestRecord) -> Seconds | None:
    """(E2EL − TTFT) / (output tokens − 1); None below 2 output tokens or where they are unknown."""
    if request.first_chunk_s is None or request.last_chunk_s is None:
        return None
    if request.output_tokens is None or request.output_tokens < 2:
        return None
    return (request.last_chunk_s - request.first_chunk_s) / (request.output_tokens - 1)


def known(values: Iterable[float | None]) -> Values:
    """The values that are known, as an array."""
    return np.fromiter((value for value in values if value is not None), dtype=np.float64)


def chunk_times(requests: Sequence[RequestRecord]) -> tuple[Values, npt.NDArray[np.intp]]:
    """Arrival times of all content chunks in one array, and to which request each belongs."""
    counts = np.fromiter((len(r.chunk_times_s) for r in requests), np.intp, len(requests))
    times = np.fromiter(
        chain.from_iterable(r.chunk_times_s for r in requests), np.float64, int(counts.sum())
    )
    return times, np.repeat(np.arange(len(requests)), counts)


def pooled_itl(
    requests: Sequence[RequestRecord], window: tuple[Seconds, Seconds] | None = None
) -> Values:
    """Gaps between successive content chunks of one request, over all requests.

    With a ``window`` only gaps that lie wholly inside it.
    """
    times, owner = chunk_times(requests)
    if times.size < 2:
        return np.empty(0)
    same = owner[1:] == owner[:-1]
    if window is not None:
        same &= (times[:-1] >= window[0]) & (times[1:] <= window[1])
    gaps: Values = np.diff(times)[same]
    return gaps


def distribution(values: Values) -> Distribution:
    """Mean, p50, p90 and, from 100 values up, p99; all None when there is no value."""
    count = int(values.size)
    if count == 0:
        return Distribution(0)
    p50, p90, p99 = percentiles(values, (0.5, 0.9, 0.99))
    return Distribution(count, float(values.mean()), p50, p90, p99 if count >= P99_NEEDS else None)


def ecdf(values: Values, most: int) -> tuple[Values, Values]:
    """The cumulative distribution of one value or more, in ``most`` steps at most: values, shares.

    It begins at the smallest value with a share of 0. Of more values than steps it passes evenly
    spaced quantiles, each a value that occurred, so that both ends are true.
    """
    steps = min(values.size, most)
    shares = np.arange(1, steps + 1) / steps
    at = np.quantile(values, shares, method="inverted_cdf")
    return np.concatenate(([values.min()], at)), np.concatenate(([0.0], shares))
