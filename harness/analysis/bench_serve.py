"""One trial's figures under the names of ``vllm bench serve --save-result`` (vLLM 0.32.0).

Method: names and units are the engine's own (milliseconds where a name ends in ``_ms``, else
seconds, tokens and per second); the arithmetic is this package's (``latency``, ``metrics``), which
defines its latencies as that benchmark does. What is unknown is None, where the engine's file has
0. Not covered: names that a plain text load has no use for (speculative decoding, probes, audio).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from harness import units
from harness.analysis.latency import (
    P99_NEEDS,
    Values,
    chunk_times,
    e2el,
    is_completed,
    known,
    pooled_itl,
    tpot,
    ttft,
)
from harness.analysis.metrics import measured
from harness.analysis.results import Summary
from harness.record import RequestRecord, Run, TrialRecord

Field = str | int | float | bool | None


def fields(trial: TrialRecord, summary: Summary | None) -> dict[str, Field]:
    """The whole file but its per-request lists; figures are None for a trial not played."""
    done = [request for request in measured(trial) if is_completed(request)]
    return {
        **_settings(trial.run),
        **_totals(summary),
        "max_output_tokens_per_s": _peak_chunks(done),
        "max_concurrent_requests": _peak_requests(done),
        "rtfx": None,
        **_latencies("ttft", known(ttft(request) for request in done)),
        **_latencies("tpot", known(tpot(request) for request in done)),
        **_latencies("itl", pooled_itl(done)),
        **_latencies("e2el", known(e2el(request) for request in done)),
    }


def lists(trial: TrialRecord) -> dict[str, list[Any]]:
    """What ``--save-detailed`` adds: a value per measured request, in order of sending.

    Times in seconds, ``start_times`` on the trial's clock; ``queue_times`` is how long a request
    waited in the client for its turn, which ours does before it takes any.
    """
    requests = sorted(measured(trial), key=lambda request: request.sent_s)
    return {
        "input_lens": [request.prompt_tokens for request in requests],
        "output_lens": [request.output_tokens for request in requests],
        "ttfts": [ttft(request) for request in requests],
        "itls": [np.diff(request.chunk_times_s).tolist() for request in requests],
        "latencies": [e2el(request) for request in requests],
        "start_times": [request.sent_s for request in requests],
        "queue_times": [None for _ in requests],
        "generated_texts": [request.text for request in requests],
        "errors": [request.error or "" for request in requests],
    }


def _settings(run: Run) -> dict[str, Field]:
    trial = run.trial
    rate = trial.workload.get("request_rate")
    client = "openai" if trial.engine == "vllm" else trial.engine
    return {
        "date": _date(run.zero_unix_s),
        "endpoint_type": client,
        "backend": client,
        "label": trial.variant,
        "model_id": trial.model,
        "tokenizer_id": trial.model,
        "num_prompts": trial.workload.get("num_prompts"),
        # The engine's word for "as fast as the server takes them".
        "request_rate": "inf" if rate is None else rate,
        "burstiness": trial.workload.get("burstiness"),
        "max_concurrency": trial.workload.get("concurrency"),
    }


def _date(unix_s: float | None) -> str | None:
    if unix_s is None:
        return None
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y%m%d-%H%M%S")
    except (ValueError, OverflowError, OSError):
        return None


def _totals(summary: Summary | None) -> dict[str, Field]:
    def of(name: str) -> Field:
        value: Field = getattr(summary, name, None)
        return value

    return {
        "duration": of("duration_s"),
        "completed": of("completed"),
        "failed": of("failed"),
        "total_input_tokens": of("prompt_tokens"),
        "total_output_tokens": of("output_tokens"),
        "request_throughput": of("request_throughput"),
        "request_goodput": of("goodput"),
        "output_throughput": of("output_throughput"),
        "total_token_throughput": of("total_token_throughput"),
    }


def _latencies(name: str, values_s: Values) -> dict[str, Field]:
    """Mean, median, deviation (of the whole, as numpy's) and percentiles, in milliseconds."""
    figures: dict[str, float | None] = dict.fromkeys(("mean", "median", "std", "p90", "p99"))
    if values_s.size:
        p90, p99 = (float(value) for value in np.percentile(values_s, (90, 99)))
        figures = {
            "mean": float(values_s.mean()),
            "median": float(np.median(values_s)),
            "std": float(values_s.std()),
            "p90": p90,
            "p99": p99 if values_s.size >= P99_NEEDS else None,
        }
    return {f"{word}_{name}_ms": units.milliseconds(value) for word, value in figures.items()}


def _peak_chunks(done: Sequence[RequestRecord]) -> float | None:
    """Content chunks in the fullest second, counted from the first send; None without any."""
    times, _ = chunk_times(done)
    if not times.size:
        return None
    seconds = np.floor(times - min(request.sent_s for request in done))
    return float(np.unique(seconds, return_counts=True)[1].max())


def _peak_requests(done: Sequence[RequestRecord]) -> int | None:
    """Requests alive at any moment of the fullest second; None without any."""
    alive = [(r.sent_s, r.last_chunk_s) for r in done if r.last_chunk_s is not None]
    if not alive:
        return None
    seconds = np.floor(np.array(alive) - min(start for start, _ in alive))
    starts, ends = np.sort(seconds[:, 0]), np.sort(seconds[:, 1])
    # The count can only be largest in a second in which a request begins.
    begun = np.searchsorted(starts, starts, side="right")
    ended = np.searchsorted(ends, starts, side="left")
    return int((begun - ended).max())
