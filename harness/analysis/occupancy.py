"""What the KV pool holds over time: tokens in flight beside the engine's block gauge.

Method: at every scrape of ``/metrics`` the request log is asked what must be stored. A request
holds its prompt and the tokens streamed so far from its first chunk until it ends. Between send
and first chunk it may be waiting (nothing stored) or in prefill (part of its prompt stored); that
is not visible from outside, so two curves are drawn, without such prompts and with them. Where
both agree the point is *settled*, and only there the gap to the block gauge is called
fragmentation: the unused tail of each request's last block, and blocks held for tokens to come.

The gauge is a fraction of ``num_gpu_blocks − 1``, since the engine keeps one null block. A
request without the server's counts (it failed) counts with its planned prompt and one token per
chunk. Not covered: shared prefixes, which the request log counts once per request; layers that
do not keep every token (windows, recurrent states), for which blocks and tokens have no fixed
ratio: hand in ``kv_bytes_per_token=None`` there; requests before and after the samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis.latency import Values, chunk_times
from harness.analysis.results import Occupancy, OccupancyPoint
from harness.analysis.series import Series, series
from harness.record import GrantedKv, RequestRecord, TrialRecord
from harness.specs.pool import blocks_in_use, usable_blocks
from harness.units import Bytes, Fraction, Tokens

#: Device memory that moves by less than this share of itself during the load is called flat.
FLAT_WITHIN: Fraction = 0.02


def usable_tokens(granted: GrantedKv) -> Tokens | None:
    """Slots of the pool that requests can use: all blocks but the null block, × block size."""
    if granted.num_gpu_blocks is None or granted.block_size is None:
        return None
    return usable_blocks(granted.num_gpu_blocks) * granted.block_size


def occupancy(trial: TrialRecord, *, kv_bytes_per_token: float | None = None) -> Occupancy | None:
    """Return the pool's state at every scrape; None if the engine was never scraped.

    ``kv_bytes_per_token`` (per GPU) turns tokens into bytes; without it bytes are unknown.
    """
    usage = series(trial.engine_samples, lambda sample: sample.kv_cache_usage)
    times = np.array(sorted(sample.t_s for sample in trial.engine_samples), dtype=np.float64)
    if not times.size:
        return None
    stored, unseen = _tokens_in_flight(trial.requests, times)
    gauge = _gauge(usage, times, trial.run.server.granted if trial.run.server else GrantedKv())
    device = _device(trial)
    points = tuple(
        OccupancyPoint(
            t_s=float(t),
            tokens_in_flight=float(held),
            tokens_sent=float(held + waiting),
            block_tokens=blocks,
            block_bytes=_times(blocks, kv_bytes_per_token),
            in_flight_bytes=_times(float(held), kv_bytes_per_token),
            device_bytes=_nearest(device, float(t)),
        )
        for t, held, waiting, blocks in zip(times, stored, unseen, gauge, strict=True)
    )
    return _occupancy(points, device)


def _times(tokens: float | None, kv_bytes_per_token: float | None) -> float | None:
    return None if tokens is None or kv_bytes_per_token is None else tokens * kv_bytes_per_token


def _gauge(usage: Series, times: Values, granted: GrantedKv) -> list[Tokens | None]:
    """Slots of the blocks in use at each time."""
    by_time = dict(zip(usage.t_s.tolist(), usage.values.tolist(), strict=True))
    held = (blocks_in_use(by_time.get(float(t)), granted.num_gpu_blocks) for t in times)
    size = granted.block_size
    return [None if count is None or size is None else count * size for count in held]


def _tokens_in_flight(requests: Sequence[RequestRecord], times: Values) -> tuple[Values, Values]:
    """Tokens surely stored at each time, and prompts whose state can't be seen from outside."""
    stored, unseen = np.zeros(times.size + 1), np.zeros(times.size + 1)
    prompts = np.array([_prompt(r) for r in requests], dtype=np.float64)
    chunks, owner = chunk_times(requests)
    per_chunk = np.array([_tokens_per_chunk(r) for r in requests], dtype=np.float64)
    arrived = per_chunk[owner]
    ended = np.array([_ended(r) for r in requests], dtype=np.float64)
    begun = np.array([_or_never(r.first_chunk_s) for r in requests], dtype=np.float64)
    sent = np.array([r.sent_s for r in requests], dtype=np.float64)
    output = np.bincount(owner, weights=arrived, minlength=len(requests))
    _step(stored, times, begun, prompts)
    _step(stored, times, chunks, arrived)
    _step(stored, times, np.where(np.isinf(begun), begun, ended), -(prompts + output))
    _step(unseen, times, sent, prompts)
    _step(unseen, times, np.minimum(begun, ended), -prompts)
    # Sums of fractions leave dust where exact zero is meant.
    return np.round(np.cumsum(stored)[:-1], 6), np.round(np.cumsum(unseen)[:-1], 6)


def _step(changes: Values, times: Values, at: Values, amount: Values) -> None:
    """Add each change to the first sample that can see it (at its moment or later)."""
    if at.size:
        changes += np.bincount(
            np.searchsorted(times, at, side="left"), weights=amount, minlength=changes.size
        )


def _prompt(request: RequestRecord) -> Tokens:
    known = request.prompt_tokens
    return request.prompt_tokens_planned if known is None else known


def _tokens_per_chunk(request: RequestRecord) -> float:
    chunks = len(request.chunk_times_s)
    return request.output_tokens / chunks if request.output_tokens and chunks else 1.0


def _or_never(t_s: float | None) -> float:
    return float("inf") if t_s is None else t_s


def _ended(request: RequestRecord) -> float:
    if request.finished_s is not None:
        return request.finished_s
    return _or_never(request.last_chunk_s)


def _device(trial: TrialRecord) -> Series:
    """Device memory in use, all devices together; resident memory where there is no device."""
    if not trial.gpu_samples:
        return series(trial.process_samples, lambda sample: sample.rss_bytes)
    by_time: dict[float, list[Bytes | None]] = {}
    for sample in trial.gpu_samples:
        by_time.setdefault(sample.t_s, []).append(sample.used_bytes)
    devices = len({sample.device for sample in trial.gpu_samples})
    return Series(
        (t, sum(used for used in readings if used is not None))
        for t, readings in by_time.items()
        if len(readings) == devices and None not in readings
    )


def _nearest(device: Series, t: float) -> Bytes | None:
    """The last reading up to ``t``, or the first one if none came before."""
    if not len(device):
        return None
    index = max(int(np.searchsorted(device.t_s, t, side="right")) - 1, 0)
    return int(device.values[index])


def _occupancy(points: tuple[OccupancyPoint, ...], device: Series) -> Occupancy:
    settled = [
        (point.block_tokens - point.tokens_in_flight, point.block_tokens)
        for point in points
        if point.block_tokens
        and point.tokens_in_flight
        and point.tokens_sent == point.tokens_in_flight
    ]
    gaps = [gap for gap, _ in settled]
    shares = [gap / blocks for gap, blocks in settled]
    span = int(device.values.max() - device.values.min()) if len(device) else None
    peak = device.peak()
    return Occupancy(
        points=points,
        settled=len(settled),
        fragmentation_mean_tokens=sum(gaps) / len(gaps) if gaps else None,
        fragmentation_peak_tokens=max(gaps) if gaps else None,
        fragmentation_mean_fraction=sum(shares) / len(shares) if shares else None,
        device_flat=None if span is None or not peak else span <= FLAT_WITHIN * peak,
        device_span_bytes=span,
    )
