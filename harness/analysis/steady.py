"""The steady-state window of a load: its ramp and its drain left out.

Method: the window opens when the first request completes (before that requests only come) and
closes when the last one is sent (after that they only go). In a closed loop the concurrency is
full throughout. It is used only if at least as many requests complete inside it as were ever in
flight at once, one full turn of the slots; otherwise there is no steady state to speak of.

Throughput counts what happens inside the window: output tokens by their chunks (a request's
tokens spread evenly over them), prompts by their first chunk, requests by their completion.
Latencies are of requests sent and completed inside it (TTFT: whose first chunk came inside it),
so that neither ramp nor drain touches them. Not covered: warm-ups, which the caller has removed,
and slow drifts inside the window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis.latency import (
    Values,
    chunk_times,
    distribution,
    e2el,
    is_completed,
    known,
    pooled_itl,
    tpot,
    ttft,
)
from harness.analysis.results import SteadyState
from harness.record import RequestRecord
from harness.units import Seconds, counted


def steady(requests: Sequence[RequestRecord]) -> tuple[SteadyState | None, str | None]:
    """Return the figures of the steady-state window, or None and the reason."""
    done = [request for request in requests if is_completed(request)]
    if not done:
        return None, "no request completed"
    start = min(_end(request) for request in done)
    end = max(request.sent_s for request in requests)
    if end <= start:
        return None, "the last request was sent before the first completed: all ramp and drain"
    completed = sum(start < _end(request) <= end for request in done)
    slots = most_in_flight(requests)
    if completed < slots:
        return None, (
            f"{counted(completed, 'request')} completed between the first completion and the "
            f"last send, fewer than the {slots} in flight at once: give the workload more prompts"
        )
    return _figures(done, start, end, completed), None


def most_in_flight(requests: Sequence[RequestRecord]) -> int:
    """The largest number of requests that were sent and not finished at the same time."""
    sent = np.sort(known(request.sent_s for request in requests))
    ended = np.sort(known(request.finished_s for request in requests))
    if not sent.size:
        return 0
    # A slot that is freed and filled at the same instant is one slot: ends count first.
    gone = np.searchsorted(ended, sent, side="right")
    return int((np.arange(1, sent.size + 1) - gone).max())


def _end(request: RequestRecord) -> Seconds:
    end = request.last_chunk_s if request.last_chunk_s is not None else request.finished_s
    return request.sent_s if end is None else end


def _figures(
    done: Sequence[RequestRecord], start: Seconds, end: Seconds, completed: int
) -> SteadyState:
    span = end - start
    inside = [r for r in done if r.sent_s >= start and _end(r) <= end]
    begun = [r for r in done if r.sent_s >= start and (r.first_chunk_s or end + 1) <= end]
    output = _output_tokens(done, start, end)
    prompts = _prompt_tokens(done, start, end)
    return SteadyState(
        start_s=start,
        end_s=end,
        completed=completed,
        request_throughput=completed / span,
        output_throughput=None if output is None else output / span,
        total_token_throughput=(
            None if output is None or prompts is None else (output + prompts) / span
        ),
        ttft_s=distribution(known(ttft(r) for r in begun)),
        tpot_s=distribution(known(tpot(r) for r in inside)),
        itl_s=distribution(pooled_itl(done, (start, end))),
        e2el_s=distribution(known(e2el(r) for r in inside)),
    )


def _output_tokens(done: Sequence[RequestRecord], start: Seconds, end: Seconds) -> float | None:
    if any(r.output_tokens is None for r in done):
        return None
    times, owner = chunk_times(done)
    per_chunk: Values = np.array(
        [(r.output_tokens or 0) / max(len(r.chunk_times_s), 1) for r in done]
    )
    return float(per_chunk[owner[(times > start) & (times <= end)]].sum())


def _prompt_tokens(done: Sequence[RequestRecord], start: Seconds, end: Seconds) -> int | None:
    prompts = [
        r.prompt_tokens
        for r in done
        if r.first_chunk_s is not None and start < r.first_chunk_s <= end
    ]
    read = [count for count in prompts if count is not None]
    return sum(read) if len(read) == len(prompts) else None
