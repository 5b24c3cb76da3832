"""The facts from which a report makes its opening sentence.

Method: what the pool gained (capacity, bytes per token), then per workload what that bought
(throughput, TTFT, TPOT, preemptions), each with ratio, interval, noise floor and verdict. Not
covered: wording, and any recommendation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis.results import (
    Cell,
    Comparison,
    Headline,
    HeadlineFinding,
    Interval,
    KvComparison,
    Row,
    TrialAnalysis,
)
from harness.analysis.verdict import worst
from harness.units import Fraction, Tokens

POOL_FINDINGS = ("kv.kv_cache_tokens", "kv.kv_bytes_per_token")
LOAD_FINDINGS = ("output_throughput", "ttft_s.p50", "tpot_s.p50", "preemptions")

#: More tokens than a pool has bytes for, by more than rounding: some layers free blocks early.
_BEYOND_ITS_BYTES = 1.01

#: A queue with a pool this full is a queue for blocks.
FULL_POOL: Fraction = 0.90


def headline(
    question: str,
    baseline: str,
    trials: Sequence[TrialAnalysis],
    comparisons: Sequence[Comparison],
    kv: Sequence[KvComparison],
    never_run: int,
) -> Headline:
    """Collect the findings; ``never_run`` counts planned trials that left no record."""
    agreements = [pool.agrees for pool in kv if pool.agrees is not None]
    ended = [trial.status for trial in trials]
    return Headline(
        question=question,
        baseline=baseline,
        findings=tuple(_findings(comparisons)),
        pool_limited_workloads=_pool_limited(trials),
        theory_agrees=all(agreements) if agreements else None,
        trials_sealed=ended.count("sealed"),
        trials_failed=ended.count("failed"),
        trials_skipped=ended.count("skipped"),
        trials_unfinished=ended.count("started") + never_run,
    )


def _findings(comparisons: Sequence[Comparison]) -> Iterator[HeadlineFinding]:
    for metric in POOL_FINDINGS:
        seen: set[str] = set()
        for finding in _of(comparisons, metric, with_workload=False):
            if finding.variant not in seen:
                seen.add(finding.variant)
                yield finding
    for metric in LOAD_FINDINGS:
        yield from _of(comparisons, metric, with_workload=True)


def _of(
    comparisons: Sequence[Comparison], metric: str, *, with_workload: bool
) -> Iterator[HeadlineFinding]:
    for comparison in comparisons:
        row = comparison.row(metric)
        base = row.cell(comparison.baseline) if row is not None else None
        if row is None or base is None:
            continue
        for cell in row.cells:
            if not cell.is_baseline and cell.value is not None:
                label = comparison.workload_label if with_workload else None
                yield _finding(row, base, cell, label)


def _finding(row: Row, base: Cell, cell: Cell, workload_label: str | None) -> HeadlineFinding:
    return HeadlineFinding(
        variant=cell.variant,
        workload_label=workload_label,
        metric=row.metric,
        unit=row.unit,
        better=row.better,
        baseline_value=base.value,
        variant_value=cell.value,
        ratio=cell.ratio,
        interval=cell.interval,
        noise=row.noise,
        effect=cell.effect or "unknown",
        improves=cell.improves,
        verdict=worst((*base.verdicts, *cell.verdicts)),
        codes=tuple(dict.fromkeys(v.code for v in (*base.verdicts, *cell.verdicts))),
    )


def widest_interval(
    comparisons: Sequence[Comparison], metric: str = "output_throughput"
) -> Interval | None:
    """The least certain ratio of ``metric``, for deciding on more repeats.

    None while some variant has no interval yet, or there is nothing to compare.
    """
    rows = [row for c in comparisons if (row := c.row(metric)) is not None]
    found = [cell.interval for row in rows for cell in row.cells if not cell.is_baseline]
    known = [one for one in found if one is not None and one.relative_width is not None]
    if not known or len(known) < len(found):
        return None
    return max(known, key=lambda interval: interval.relative_width or 0.0)


def request_length(pools: Sequence[KvComparison]) -> Tokens | None:
    """The length of the requests by which these pools are to be compared.

    The engine prints concurrency × max_model_len as its tokens. Where windowed or evicting layers
    free blocks, that is more than the pool's bytes can store: what is compared then is requests of
    max_model_len. None where every pool can store the tokens that it is said to hold.
    """
    for pool in pools:
        length = _length_beyond(pool)
        if length is not None:
            return length
    return None


def _length_beyond(pool: KvComparison) -> Tokens | None:
    """max_model_len, of a pool that is said to hold more tokens than its bytes can store."""
    granted, rate = pool.granted, pool.predicted and pool.predicted.kv_bytes_per_token
    tokens, size, fits = (
        granted.kv_cache_tokens,
        granted.kv_cache_memory_bytes,
        granted.max_concurrency,
    )
    if not tokens or not size or not fits or not rate:
        return None
    return round(tokens / fits) if tokens * rate > size * _BEYOND_ITS_BYTES else None


def _pool_limited(trials: Sequence[TrialAnalysis]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(t.workload_label for t in trials if _is_pool_limited(t)))


def _is_pool_limited(trial: TrialAnalysis) -> bool:
    summary = trial.summary
    if summary is None:
        return False
    full = summary.kv_usage_peak is not None and summary.kv_usage_peak >= FULL_POOL
    return bool(summary.preemptions) or (full and bool(summary.requests_waiting_peak))
