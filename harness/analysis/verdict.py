"""Can a figure be trusted: valid, suspect or invalid, each with its reason and evidence.

Method: every check looks for one cause in the facts of a trial and names the figures that it
harms; a figure that nothing names is valid. Suspect means that the figure stands and the reason
is to be read with it; invalid that it doesn't measure what it is called. What is compared between
variants is in ``fairness``. A limit is a constant with its reason. Not covered: causes that leave
no trace in the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.analysis.fairness import fairness
from harness.analysis.latency import P99_NEEDS, is_completed
from harness.analysis.metrics import measured, phase
from harness.analysis.results import Distribution, Summary, Validity, Verdict
from harness.record import GpuSample, RequestRecord, TrialRecord
from harness.units import (
    MIB,
    Bytes,
    Fraction,
    Seconds,
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
)

#: Figures that any disturbance of a load falls upon.
RATES = ("request_throughput", "output_throughput", "total_token_throughput", "goodput")
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2el_s")
SPEED = (*RATES, *LATENCIES)
ENGINE_GAUGES = (
    "kv_usage_peak",
    "kv_usage_mean",
    "kv_in_use_peak_tokens",
    "kv_in_use_peak_bytes",
    "preemptions",
    "prefix_cache_hit_rate",
    "requests_running_peak",
    "requests_waiting_peak",
)

#: A lag of the client shifts its timestamps by as much: a tenth of what is measured, and no less
#: than the scheduling jitter of a busy machine.
CLIENT_LAG_SHARE: Fraction = 0.10
CLIENT_LAG_FLOOR_S: Seconds = 0.005
#: A slot that idles for longer takes more off a throughput than the effects often looked for.
SLOT_IDLE_LIMIT: Fraction = 0.02
#: Above this share of a core the client's event loop has no slack left.
CLIENT_CPU_LIMIT: Fraction = 0.90
#: Rounding of a tokenizer's special tokens is below, another workload above.
TOKEN_MISMATCH_LIMIT: Fraction = 0.01
PREFIX_HIT_LIMIT: Fraction = 0.01
FAILED_LIMIT: Fraction = 0.01
#: What a display or an idle driver holds of a device.
CLEAN_DEVICE_BYTES: Bytes = 512 * MIB
THROTTLED_LIMIT: Fraction = 0.05
SAMPLER_LIMIT: Fraction = 0.02
#: Gauges may have moved unseen for this long, if the sampler's own interval does not say.
GAP_LIMIT_S: Seconds = 1.0
GAP_INTERVALS = 5
P90_NEEDS = 10

#: Clock limits that are somebody's setting, or no limit at all.
_NOT_THROTTLING = frozenset({"gpu_idle", "applications_clocks_setting", "display_clock_setting"})

_RANK: dict[Validity, int] = {"valid": 0, "suspect": 1, "invalid": 2}


@dataclass(frozen=True, slots=True)
class _Case:
    """A trial, its figures, and the completed requests that they rest on."""

    trial: TrialRecord
    summary: Summary
    done: tuple[RequestRecord, ...]


def verdicts(
    trial: TrialRecord, summary: Summary | None, peers: Sequence[TrialRecord] = ()
) -> tuple[Verdict, ...]:
    """Return what is to be said against the trial's figures; an empty tuple means all valid.

    ``peers`` are the run's other trials under the same workload, the baseline's among them.
    """
    found = list(_status(trial))
    if summary is not None and trial.run.status != "skipped":
        done = tuple(request for request in measured(trial) if is_completed(request))
        case = _Case(trial, summary, done)
        found += [verdict for check in _CHECKS for verdict in check(case)]
    if trial.run.status == "sealed":
        found += fairness(trial, peers, SPEED)
    return tuple(found)


def touches(verdict: Verdict, metric: str) -> bool:
    """Whether a verdict speaks of ``metric`` (a dotted name such as ``ttft_s.p50``)."""
    return verdict.field in ("*", metric) or metric.startswith(f"{verdict.field}.")


def worst(found: Iterable[Verdict]) -> Validity:
    """The gravest of the verdicts; valid if there is none."""
    return max((verdict.verdict for verdict in found), key=_RANK.__getitem__, default="valid")


def grouped(found: Iterable[Verdict]) -> tuple[tuple[Verdict, tuple[str, ...]], ...]:
    """Verdicts that differ in their field alone, as one with all their fields."""
    groups: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in found:
        groups.setdefault((verdict.code, verdict.verdict, verdict.reason), []).append(verdict)
    return tuple(
        (members[0], tuple(dict.fromkeys(member.field for member in members)))
        for members in groups.values()
    )


def _each(fields: Iterable[str], verdict: Validity, code: str, reason: str) -> Iterator[Verdict]:
    return (Verdict(field, verdict, code, reason) for field in fields)


def _status(trial: TrialRecord) -> Iterator[Verdict]:
    run = trial.run
    if run.status == "failed":
        reason = f"the trial failed: {run.reason or 'no reason was recorded'}"
        yield Verdict("*", "invalid", "trial_failed", reason)
    if run.status == "started":
        reason = "the trial did not come to its end; run it again with --resume"
        yield Verdict("*", "invalid", "trial_unfinished", reason)
    if trial.damaged_lines:
        reason = f"{counted(trial.damaged_lines, 'line')} of the stored record can't be read"
        yield Verdict("*", "suspect", "damaged_record", reason)


def _nothing_completed(case: _Case) -> Iterator[Verdict]:
    if case.trial.run.status == "sealed" and not case.done:
        yield Verdict("*", "invalid", "nothing_completed", "no measured request completed")


def _failed_requests(case: _Case) -> Iterator[Verdict]:
    if case.trial.run.status != "sealed":
        return
    seen = case.summary.completed + case.summary.failed
    meant = max(case.summary.planned or 0, seen)
    lost = meant - case.summary.completed
    if meant and lost / meant > FAILED_LIMIT:
        first = next((r.error for r in measured(case.trial) if r.error is not None), None)
        reason = f"{lost} of {meant} requests ({format_percent(lost / meant)}) did not complete"
        yield from _each(
            SPEED, "invalid", "failed_requests", f"{reason}; first: {first}" if first else reason
        )


def _token_counts(case: _Case) -> Iterator[Verdict]:
    yield from _mismatch(
        [(r.prompt_tokens, r.prompt_tokens_planned) for r in case.done],
        "prompt_tokens",
        "prompt_tokens_mismatch",
        "the server may add special tokens, or have cut the prompt",
    )
    yield from _mismatch(
        [(r.output_tokens, r.output_tokens_planned) for r in case.done],
        "output_tokens",
        "output_tokens_mismatch",
        "the output length was pinned; check that the server honours ignore_eos and that "
        "max_model_len has room",
    )


def _mismatch(
    pairs: Sequence[tuple[int | None, int]], field: str, code: str, hint: str
) -> Iterator[Verdict]:
    what = field.replace("_", " ")
    unknown = sum(count is None for count, _ in pairs)
    if unknown:
        reason = f"the server reported no {what} for {unknown} of {len(pairs)} requests"
        yield Verdict(field, "suspect", "token_counts_unknown", reason)
    known = [(count, planned) for count, planned in pairs if count is not None]
    wrong = [pair for pair in known if pair[0] != pair[1]]
    if wrong:
        off = sum(abs(count - planned) for count, planned in wrong)
        grave = off > TOKEN_MISMATCH_LIMIT * sum(planned for _, planned in known)
        count, planned = wrong[0]
        reason = (
            f"{len(wrong)} of {len(known)} requests differ from the planned {what}, the first by "
            f"{count - planned:+,} ({count:,} for {planned:,}): {hint}"
        )
        yield from _each((field, *SPEED), "invalid" if grave else "suspect", code, reason)


def _prefix_hits(case: _Case) -> Iterator[Verdict]:
    rate = _hit_rate(case)
    workload = case.trial.run.trial.workload
    if rate and not (workload.get("shared_prefix_tokens") or workload.get("turns")):
        reason = (
            f"{format_percent(rate)} of the prompt tokens came from the prefix cache though no "
            "prompt shares a prefix: a warm cache was measured; switch enable_prefix_caching off "
            "or restart the server between loads"
        )
        grave = rate > PREFIX_HIT_LIMIT
        yield from _each(SPEED, "invalid" if grave else "suspect", "prefix_cache_hits", reason)


def _hit_rate(case: _Case) -> Fraction | None:
    if case.summary.prefix_cache_hit_rate is not None:
        return case.summary.prefix_cache_hit_rate
    told = [
        (r.cached_prompt_tokens, r.prompt_tokens)
        for r in case.done
        if r.cached_prompt_tokens is not None and r.prompt_tokens
    ]
    prompts = sum(prompt for _, prompt in told)
    return sum(cached for cached, _ in told) / prompts if prompts else None


def _preemptions(case: _Case) -> Iterator[Verdict]:
    if case.summary.preemptions:
        reason = (
            f"{format_count(case.summary.preemptions)} preemptions: the pool was too small for the "
            "load, so the figure includes work done twice; it shows the limit of capacity, not the "
            "speed of the kernels"
        )
        yield from _each(SPEED, "suspect", "preemptions", reason)


def _client_bound(case: _Case) -> Iterator[Verdict]:
    yield from _lagging_loop(case.summary)
    share = case.summary.client_cpu_share
    if share is not None and share > CLIENT_CPU_LIMIT:
        reason = (
            f"client-bound: the client used {format_percent(share, 0)} of a core, the limit is "
            f"{format_percent(CLIENT_CPU_LIMIT, 0)}; use --load-workers"
        )
        yield from _each(SPEED, "suspect", "client_bound", reason)
    if case.trial.run.trial.workload.get("request_rate") is None:
        yield from _slow_refills(case.summary)
    else:
        yield from _late_arrivals(case.summary)


def _lagging_loop(summary: Summary) -> Iterator[Verdict]:
    """Each figure against the lag of its own kind: a rare lag harms a p99 and no median."""
    for field in LATENCIES:
        measure: Distribution = getattr(summary, field)
        for figure in ("mean", "p50", "p90", "p99"):
            value, lag = getattr(measure, figure), _shift(summary, field, figure)
            if value is None or lag is None:
                continue
            floor = 0.0 if _is_spread(field, figure) else CLIENT_LAG_FLOOR_S
            limit = max(floor, CLIENT_LAG_SHARE * value)
            if lag > limit:
                reason = (
                    f"client-bound: the client's event loop lagged so that this figure may be off "
                    f"by {format_duration(lag)}, the limit is {format_duration(limit)}; free a "
                    "core for the client, or use --load-workers"
                )
                yield Verdict(f"{field}.{figure}", "suspect", "client_bound", reason)


def _shift(summary: Summary, field: str, figure: str) -> Seconds | None:
    """How far the loop's lag can have moved a figure."""
    lags = summary.client_loop_lag_s
    lag: Seconds | None = getattr(lags, figure)
    lag = summary.client_loop_lag_p99_s if figure == "p99" else lag
    if lag is None or not _is_spread(field, figure):
        return lag
    tokens = (summary.output_tokens or 0) / max(summary.completed, 1)
    return lag / (tokens - 1) if tokens > 1 else lag


def _is_spread(field: str, figure: str) -> bool:
    """TPOT and the mean gap: the difference of two arrivals over all tokens but the first."""
    return field == "tpot_s" or (field, figure) == ("itl_s", "mean")


def _slow_refills(summary: Summary) -> Iterator[Verdict]:
    """Closed loop: a slot that waits for its next request takes that share off every rate."""
    late, busy = summary.send_lag_s.mean, summary.e2el_s.mean
    if late is not None and busy and late > SLOT_IDLE_LIMIT * busy:
        reason = (
            f"client-bound: a freed slot stood idle for {format_duration(late)} on average, "
            f"{format_percent(late / busy)} of a request (limit {format_percent(SLOT_IDLE_LIMIT)})"
        )
        yield from _each(RATES, "suspect", "client_bound", reason)


def _late_arrivals(summary: Summary) -> Iterator[Verdict]:
    """Open loop: requests that are sent late are another arrival process."""
    lags = summary.send_lag_s
    late = lags.p99 if lags.p99 is not None else lags.p90
    limit = max(CLIENT_LAG_FLOOR_S, CLIENT_LAG_SHARE * (summary.ttft_s.p50 or 0.0))
    if late is not None and late > limit:
        name = "p99" if lags.p99 is not None else "p90"
        reason = (
            f"client-bound: requests were sent {format_duration(late)} ({name}) after their time, "
            f"the limit is {format_duration(limit)}: the load was not the one planned"
        )
        yield from _each(SPEED, "suspect", "client_bound", reason)


def _device_clean(case: _Case) -> Iterator[Verdict]:
    run = case.trial.run
    used = run.server.device_used_before_bytes if run.server is not None else None
    limit = CLEAN_DEVICE_BYTES * max(len(run.environment.gpus), 1)
    if used is not None and used > limit:
        reason = (
            f"device not clean: {format_bytes(used)} were in use before the server started "
            f"(limit {format_bytes(limit)})"
        )
        yield Verdict("*", "suspect", "device_not_clean", reason)
    first = _tenants(case.trial.gpu_samples)
    for device, counts in first.items():
        if counts[0] > 0:
            reason = f"device not clean: {counts[0]} other processes on GPU {device} at the start"
            yield Verdict("*", "suspect", "device_not_clean", reason)
        if len(set(counts)) > 1:
            reason = (
                f"co-tenant changed: between {min(counts)} and {max(counts)} other processes on "
                f"GPU {device} during the trial"
            )
            yield Verdict("*", "invalid", "cotenant_changed", reason)


def _tenants(samples: Sequence[GpuSample]) -> dict[int, list[int]]:
    """Other processes on each device over time, where NVML tells."""
    counts: dict[int, list[int]] = {}
    for sample in sorted(samples, key=lambda sample: sample.t_s):
        if sample.other_processes is not None:
            counts.setdefault(sample.device, []).append(sample.other_processes)
    return counts


def _throttling(case: _Case) -> Iterator[Verdict]:
    span = phase(case.trial.run)
    if span is None:
        return
    told = [
        frozenset(sample.throttle_reasons) - _NOT_THROTTLING
        for sample in case.trial.gpu_samples
        if sample.throttle_reasons is not None and span[0] <= sample.t_s <= span[1]
    ]
    slowed = [reasons for reasons in told if reasons]
    if told and len(slowed) / len(told) > THROTTLED_LIMIT:
        names = ", ".join(sorted(frozenset[str]().union(*slowed)))
        reason = f"throttling ({names}) in {format_percent(len(slowed) / len(told), 0)} of samples"
        yield from _each(SPEED, "suspect", "throttling", reason)


def _few_samples(case: _Case) -> Iterator[Verdict]:
    for field in LATENCIES:
        count = getattr(case.summary, field).count
        for figure, needs in (("p99", P99_NEEDS), ("p90", P90_NEEDS)):
            if 0 < count < needs:
                reason = f"too few samples for a {figure}: {count} of the {needs} that it needs"
                yield Verdict(f"{field}.{figure}", "suspect", "too_few_samples", reason)


def _sampler(case: _Case) -> Iterator[Verdict]:
    share = case.trial.run.sampler_cpu_share
    if share is not None and share > SAMPLER_LIMIT:
        reason = (
            f"the sampler used {format_percent(share)} of a core (limit "
            f"{format_percent(SAMPLER_LIMIT, 0)}): lower its rate"
        )
        yield from _each(SPEED, "suspect", "sampler_cost", reason)
    gap = _largest_gap(case.trial)
    limit = max(GAP_LIMIT_S, GAP_INTERVALS * (case.trial.run.sampler_interval_s or 0.0))
    if gap is not None and gap > limit:
        reason = (
            f"the engine's gauges went unread for {format_duration(gap)} during the load (limit "
            f"{format_duration(limit)}): peaks may be missing"
        )
        yield from _each(ENGINE_GAUGES, "suspect", "telemetry_gap", reason)


def _largest_gap(trial: TrialRecord) -> Seconds | None:
    run = trial.run
    if run.load_start_s is None or run.load_end_s is None or not trial.engine_samples:
        return None
    start, end = run.load_start_s, run.load_end_s
    times = sorted(sample.t_s for sample in trial.engine_samples)
    inside = [t for t in times if start < t < end]
    # A reading outside covers its edge only from where it lies.
    return max(late - early for early, late in pairwise([start, *inside, end]))


_CHECKS: tuple[Callable[[_Case], Iterator[Verdict]], ...] = (
    _nothing_completed,
    _failed_requests,
    _token_counts,
    _prefix_hits,
    _preemptions,
    _client_bound,
    _device_clean,
    _throttling,
    _few_samples,
    _sampler,
)
