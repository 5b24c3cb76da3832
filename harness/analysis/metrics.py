"""One trial's facts → its figures.

Method: DESIGN section 5 to the letter. Only requests of the measured phase count; warm-ups are
kept in the record and left out here. Rates divide by the measured duration (first measured
request handed over → last one ended); a trial that did not get to its end has no duration and so
no rates. Latencies and tokens are those of completed requests. Sampled quantities are read over
the measured phase. Not covered: whether a figure can be trusted (``verdict``), several trials
(``stats``, ``compare``), and any prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.analysis.latency import (
    P99_NEEDS,
    distribution,
    e2el,
    is_completed,
    known,
    pooled_itl,
    tpot,
    ttft,
)
from harness.analysis.results import Distribution, Summary
from harness.analysis.series import Series, series, total
from harness.analysis.steady import steady
from harness.record import GpuSample, RequestRecord, Run, TrialRecord
from harness.units import Bytes, Fraction, Seconds


def measured(trial: TrialRecord) -> tuple[RequestRecord, ...]:
    """The requests of the measured phase."""
    return tuple(request for request in trial.requests if request.phase == "measured")


def duration(run: Run) -> Seconds | None:
    """Length of the measured phase; None if it did not end, or has no length."""
    if run.load_start_s is None or run.load_end_s is None:
        return None
    length = run.load_end_s - run.load_start_s
    return length if length > 0 else None


def phase(run: Run) -> tuple[Seconds, Seconds] | None:
    """Start and end of the measured phase; one that did not end is open; None if none began."""
    if run.load_start_s is None:
        return None
    return run.load_start_s, float("inf") if run.load_end_s is None else run.load_end_s


def summarize(trial: TrialRecord) -> Summary:
    """Return the trial's figures; what its record does not tell is None."""
    requests = measured(trial)
    done = [request for request in requests if is_completed(request)]
    length = duration(trial.run)
    prompts = total(request.prompt_tokens for request in done)
    outputs = total(request.output_tokens for request in done)
    both = None if prompts is None or outputs is None else prompts + outputs
    window, no_window = steady(requests)
    engine, memory, energy, client = _engine(trial), _memory(trial), _energy(trial), _client(trial)
    return Summary(
        planned=trial.run.trial.workload.get("num_prompts"),
        completed=len(done),
        failed=len(requests) - len(done),
        duration_s=length,
        prompt_tokens=prompts,
        output_tokens=outputs,
        request_throughput=_rate(len(done) if requests else None, length),
        output_throughput=_rate(outputs, length),
        total_token_throughput=_rate(both, length),
        goodput=_rate(_good(done, trial.run.trial.slo), length),
        ttft_s=distribution(known(ttft(request) for request in done)),
        tpot_s=distribution(known(tpot(request) for request in done)),
        itl_s=distribution(pooled_itl(done)),
        e2el_s=distribution(known(e2el(request) for request in done)),
        send_lag_s=distribution(known(r.sent_s - r.planned_send_s for r in requests)),
        kv_usage_peak=engine.kv_usage_peak,
        kv_usage_mean=engine.kv_usage_mean,
        preemptions=engine.preemptions,
        prefix_cache_hit_rate=engine.prefix_cache_hit_rate,
        requests_running_peak=engine.running_peak,
        requests_waiting_peak=engine.waiting_peak,
        rss_peak_bytes=memory.rss_peak_bytes,
        gpu_used_peak_bytes=memory.gpu_used_peak_bytes,
        energy_j=energy.joules,
        energy_source=energy.source,
        energy_per_output_token_j=_share(energy.joules, outputs),
        client_loop_lag_s=client.loop_lag_s,
        client_loop_lag_p99_s=client.loop_lag_p99_s,
        client_cpu_share=client.cpu_share,
        client_cpu_share_peak=client.cpu_share_peak,
        steady=window,
        steady_reason=no_window,
    )


def _rate(amount: float | None, length: Seconds | None) -> float | None:
    return None if amount is None or length is None else amount / length


def _share(amount: float | None, parts: float | None) -> float | None:
    return None if amount is None or not parts else amount / parts


def _good(done: Sequence[RequestRecord], slo: dict[str, float]) -> int | None:
    """How many requests meet every objective; None without one, or if that can't be told."""
    if not slo or (slo.get("tpot_s") is not None and any(r.output_tokens is None for r in done)):
        return None
    return sum(_meets(request, slo) for request in done)


def _meets(request: RequestRecord, slo: dict[str, float]) -> bool:
    # A request of one output token has no TPOT; it can't miss that objective.
    too_short = request.output_tokens is not None and request.output_tokens < 2
    latencies = {
        "ttft_s": ttft(request),
        "tpot_s": 0.0 if too_short else tpot(request),
        "e2el_s": e2el(request),
    }
    return all(
        (latency := latencies[name]) is not None and latency <= limit
        for name, limit in slo.items()
        if limit is not None and name in latencies
    )


@dataclass(frozen=True, slots=True)
class _Engine:
    kv_usage_peak: Fraction | None = None
    kv_usage_mean: Fraction | None = None
    preemptions: float | None = None
    prefix_cache_hit_rate: Fraction | None = None
    running_peak: float | None = None
    waiting_peak: float | None = None


def _engine(trial: TrialRecord) -> _Engine:
    span = phase(trial.run)
    if span is None:
        return _Engine()
    samples = trial.engine_samples
    usage = series(samples, lambda sample: sample.kv_cache_usage).between(*span)
    queries = series(samples, lambda sample: sample.prefix_cache_queries_total).increase(*span)
    hits = series(samples, lambda sample: sample.prefix_cache_hits_total).increase(*span)
    return _Engine(
        kv_usage_peak=usage.peak(),
        kv_usage_mean=usage.mean(),
        preemptions=series(samples, lambda sample: sample.preemptions_total).increase(*span),
        prefix_cache_hit_rate=_share(hits, queries),
        running_peak=series(samples, lambda s: s.requests_running).between(*span).peak(),
        waiting_peak=series(samples, lambda s: s.requests_waiting).between(*span).peak(),
    )


@dataclass(frozen=True, slots=True)
class _Memory:
    rss_peak_bytes: Bytes | None = None
    gpu_used_peak_bytes: Bytes | None = None


def _memory(trial: TrialRecord) -> _Memory:
    span = phase(trial.run)
    if span is None:
        return _Memory()
    rss = series(trial.process_samples, lambda sample: sample.rss_bytes).between(*span).peak()
    # The devices are read one after the other; their peaks are added, each at its own moment.
    used = total(
        device.between(*span).peak()
        for device in by_device(trial.gpu_samples, lambda sample: sample.used_bytes).values()
    )
    return _Memory(
        rss_peak_bytes=None if rss is None else int(rss),
        gpu_used_peak_bytes=None if used is None else int(used),
    )


def by_device(
    samples: Sequence[GpuSample], value: Callable[[GpuSample], float | None]
) -> dict[int, Series]:
    """One quantity of each device that was sampled at all."""
    devices = sorted({sample.device for sample in samples})
    return {
        device: series([sample for sample in samples if sample.device == device], value)
        for device in devices
    }


@dataclass(frozen=True, slots=True)
class _Energy:
    joules: float | None = None
    source: Literal["counter", "power"] | None = None


def _energy(trial: TrialRecord) -> _Energy:
    """Energy of all devices over the measured phase: counters where all have one, else power."""
    length, span = duration(trial.run), phase(trial.run)
    if length is None or span is None:
        return _Energy()
    counters = by_device(trial.gpu_samples, lambda sample: sample.energy_j).values()
    joules = total(
        counter.at(span[1]) - counter.at(span[0]) if counter.covers(*span) else None
        for counter in counters
    )
    if joules is not None:
        return _Energy(joules, "counter")
    power = by_device(trial.gpu_samples, lambda sample: sample.power_w).values()
    joules = total(device.integral(*span) for device in power)
    return _Energy(joules, None if joules is None else "power")


@dataclass(frozen=True, slots=True)
class _Client:
    loop_lag_s: Distribution = field(default_factory=lambda: Distribution(0))
    loop_lag_p99_s: Seconds | None = None
    cpu_share: Fraction | None = None
    cpu_share_peak: Fraction | None = None


def _client(trial: TrialRecord) -> _Client:
    """The client's own state; below 100 readings the largest lag stands for the 99th percentile."""
    span = phase(trial.run)
    if span is None:
        return _Client()
    lag = series(trial.client_samples, lambda sample: sample.loop_lag_s).between(*span)
    share = series(trial.client_samples, lambda sample: sample.cpu_share).between(*span)
    lags = distribution(lag.values)
    worst = lags.p99 if len(lag) >= P99_NEEDS else lag.peak()
    return _Client(lags, worst, distribution(share.values).mean, share.peak())
