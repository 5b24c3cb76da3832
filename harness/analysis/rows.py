"""Trials of one workload → rows: one metric, every variant, ratio to the baseline, verdict.

Method: the value of a variant is the median of its replicates (sealed trials, one per launch); the
ratio is that of ``stats``, paired by repeat. Figures that the engine grants rather than ones that
are sampled (``exact``) need no interval: their effect is read off. Values that are zero have no
ratio. An invalid figure stays a figure, but no effect is claimed from it. Not covered: which rows
a report shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.analysis.results import (
    Better,
    Cell,
    Comparison,
    Effect,
    Interval,
    NoiseFloor,
    Row,
    SteadyState,
    Summary,
    TheoryKind,
    TrialAnalysis,
    Unit,
    Verdict,
)
from harness.analysis.stats import centre, effect, effect_of_counts, noise_floor, ratio_interval
from harness.analysis.verdict import touches, worst
from harness.specs.pool import blocks_in_use

#: Verdicts on what a load showed: the pool that was granted is none of that.
_NOT_OF_THE_POOL = ("nothing_completed", "profiles_differ")

Value = Callable[[TrialAnalysis], float | None]
#: Replicates of the baseline and of a variant, by repeat → their ratio.
Estimate = Callable[[Mapping[int, float], Mapping[int, float]], Interval | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row's definition. ``exact`` figures are granted, not sampled."""

    name: str
    label: str
    unit: Unit
    better: Better | None
    value: Value
    theory: Value | None = None
    exact: bool = False
    theory_is: TheoryKind = "expected"

    @property
    def field(self) -> str:
        """The figure that verdicts speak of: the same with and without ramp and drain."""
        return self.name.removeprefix("steady.")


def _of_summary(name: str) -> Value:
    def value(trial: TrialAnalysis) -> float | None:
        return _figure(trial.summary, name)

    return value


def _of_steady(name: str) -> Value:
    def value(trial: TrialAnalysis) -> float | None:
        return _figure(trial.summary.steady if trial.summary is not None else None, name)

    return value


def _figure(source: Summary | SteadyState | None, name: str) -> float | None:
    """``ttft_s.p50`` → ``source.ttft_s.p50``; None where there is no source."""
    value: object = source
    for part in name.split("."):
        value = None if value is None else getattr(value, part)
    return value if isinstance(value, int | float) else None


def _of_pool(name: str) -> tuple[Value, Value]:
    def granted(trial: TrialAnalysis) -> float | None:
        value: float | None = getattr(trial.granted, name)
        return value

    def predicted(trial: TrialAnalysis) -> float | None:
        value: float | None = None if trial.theory is None else getattr(trial.theory.kv, name)
        return value

    return granted, predicted


def _kv_tokens_in_use(trial: TrialAnalysis) -> float | None:
    """Slots of the blocks in use at the peak."""
    share = trial.summary.kv_usage_peak if trial.summary is not None else None
    held, size = blocks_in_use(share, trial.granted.num_blocks), trial.granted.block_size
    return None if held is None or not size else held * size


def _kv_bytes_in_use(trial: TrialAnalysis) -> float | None:
    tokens, rate = _kv_tokens_in_use(trial), trial.granted.kv_bytes_per_token
    return None if tokens is None or rate is None else tokens * rate


def _of_theory(name: str) -> Value:
    def value(trial: TrialAnalysis) -> float | None:
        expected: float | None = None if trial.theory is None else getattr(trial.theory, name)
        return expected

    return value


def _of_bounds(name: str) -> Value:
    def value(trial: TrialAnalysis) -> float | None:
        bound: float | None = None if trial.ceilings is None else getattr(trial.ceilings, name)
        return bound

    return value


def _bounded(metric: Metric) -> Metric:
    """The metric with its roofline, where there is one: the least latency, the most tokens."""
    name = metric.name.removesuffix(".p50")
    if name not in ("ttft_s", "tpot_s", "output_throughput"):
        return metric
    kind: TheoryKind = "at most" if metric.better == "higher" else "at least"
    return replace(metric, theory=_of_bounds(name), theory_is=kind)


def _pool(name: str, label: str, unit: Unit, better: Better) -> Metric:
    granted, predicted = _of_pool(name)
    return Metric(f"kv.{name}", label, unit, better, granted, predicted, exact=True)


_RATES: tuple[tuple[str, str, Unit], ...] = (
    ("request_throughput", "Requests", "per_s"),
    ("output_throughput", "Output tokens", "tokens_per_s"),
    ("total_token_throughput", "Prompt and output tokens", "tokens_per_s"),
)
_LATENCIES = (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("itl_s", "ITL"), ("e2el_s", "E2EL"))
_FIGURES = ("mean", "p50", "p90", "p99")
_SAMPLED: tuple[tuple[str, str, Unit, Better | None], ...] = (
    ("preemptions", "Preemptions", "count", "lower"),
    ("kv_usage_peak", "KV pool in use, peak", "fraction", None),
    ("kv_usage_mean", "KV pool in use, mean", "fraction", None),
    ("requests_running_peak", "Requests running, peak", "count", None),
    ("requests_waiting_peak", "Requests waiting, peak", "count", "lower"),
    ("prefix_cache_hit_rate", "Prefix-cache hits", "fraction", None),
    ("gpu_used_peak_bytes", "GPU memory in use, peak", "bytes", "lower"),
    ("rss_peak_bytes", "Resident memory, peak", "bytes", "lower"),
    ("energy_j", "Energy", "joules", "lower"),
    ("energy_per_output_token_j", "Energy per output token", "joules_per_token", "lower"),
)


def _metrics() -> tuple[Metric, ...]:
    pool = (
        _pool("kv_bytes_per_token", "KV bytes per token", "bytes_per_token", "lower"),
        _pool("kv_cache_tokens", "KV capacity", "tokens", "higher"),
        _pool("max_concurrency", "Concurrency at max_model_len", "concurrency", "higher"),
        _pool("kv_cache_memory_bytes", "KV pool", "bytes", "higher"),
    )
    in_use = (
        Metric(
            "kv_in_use_peak_tokens",
            "KV in use, peak",
            "tokens",
            None,
            _kv_tokens_in_use,
            _of_theory("kv_tokens_in_use"),
        ),
        Metric(
            "kv_in_use_peak_bytes",
            "KV in use, peak",
            "bytes",
            None,
            _kv_bytes_in_use,
            _of_theory("kv_bytes_in_use"),
        ),
    )
    rates = [
        _bounded(Metric(n, label, unit, "higher", _of_summary(n))) for n, label, unit in _RATES
    ]
    goodput = Metric("goodput", "Goodput", "per_s", "higher", _of_summary("goodput"))
    latencies = [
        _bounded(
            Metric(f"{n}.{fig}", f"{label} {fig}", "seconds", "lower", _of_summary(f"{n}.{fig}"))
        )
        for n, label in _LATENCIES
        for fig in _FIGURES
    ]
    used = [
        Metric("mbu", "Memory bandwidth used (MBU)", "fraction", None, _of_bounds("mbu")),
        Metric("mfu", "Arithmetic used (MFU)", "fraction", None, _of_bounds("mfu")),
    ]
    sampled = [Metric(n, label, u, better, _of_summary(n)) for n, label, u, better in _SAMPLED]
    load = (*rates, goodput, *latencies, *in_use, *used, *sampled)
    return (*pool, *load, *_steady())


def _steady() -> tuple[Metric, ...]:
    """The same figures over the steady-state window."""
    rates = [
        Metric(f"steady.{n}", f"{label}, steady state", unit, "higher", _of_steady(n))
        for n, label, unit in _RATES
    ]
    latencies = [
        Metric(
            f"steady.{n}.{fig}",
            f"{label} {fig}, steady state",
            "seconds",
            "lower",
            _of_steady(f"{n}.{fig}"),
        )
        for n, label in _LATENCIES
        for fig in _FIGURES
    ]
    return (*rates, *latencies)


METRICS = _metrics()
#: Names of the figures that the engine grants.
EXACT = frozenset(metric.name for metric in METRICS if metric.exact)


def comparison(
    trials: Sequence[TrialAnalysis],
    baseline: str,
    like_baseline: frozenset[str] = frozenset(),
    estimates: Mapping[str, Estimate] | None = None,
) -> Comparison:
    """Compare all variants of one workload.

    ``like_baseline`` are variants started with the baseline's own flags: they are A/A runs, and
    their launches widen the noise floor. ``estimates`` names how a variant's ratio is estimated,
    where its repeats are no neighbours of the baseline's.
    """
    named = dict.fromkeys(trial.variant for trial in trials)
    variants = tuple(sorted(named, key=lambda variant: variant != baseline))
    rows = tuple(
        _row(metric, trials, variants, baseline, like_baseline, estimates or {})
        for metric in METRICS
    )
    return Comparison(trials[0].workload, trials[0].workload_label, baseline, variants, rows)


def _row(
    metric: Metric,
    trials: Sequence[TrialAnalysis],
    variants: tuple[str, ...],
    baseline: str,
    like_baseline: frozenset[str],
    estimates: Mapping[str, Estimate],
) -> Row:
    by_variant = {name: [t for t in trials if t.variant == name] for name in variants}
    values = {name: _replicates(metric, own) for name, own in by_variant.items()}
    same = [value for name in (baseline, *like_baseline) for value in values.get(name, {}).values()]
    noise = None if metric.exact else noise_floor(same)
    base = _Side(values.get(baseline, {}), _against(metric, by_variant.get(baseline, ())))
    cells = tuple(
        _cell(
            metric,
            by_variant[name],
            name == baseline,
            base,
            values[name],
            noise,
            estimates.get(name, ratio_interval),
        )
        for name in variants
    )
    return Row(
        metric.name, metric.label, metric.unit, metric.better, noise, cells, metric.theory_is
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """The baseline as the other cells see it: its replicates, and what is said against them."""

    values: dict[int, float]
    verdicts: tuple[Verdict, ...]


def _replicates(metric: Metric, trials: Sequence[TrialAnalysis]) -> dict[int, float]:
    # What was granted was granted, even if the load failed later.
    wanted = ("sealed", "failed") if metric.exact else ("sealed",)
    values = {trial.repeat: metric.value(trial) for trial in trials if trial.status in wanted}
    return {repeat: value for repeat, value in values.items() if value is not None}


def _against(metric: Metric, trials: Sequence[TrialAnalysis]) -> tuple[Verdict, ...]:
    found = (v for t in trials if t.status == "sealed" for v in t.verdicts)
    return tuple(dict.fromkeys(v for v in found if _speaks_of(v, metric)))


def _speaks_of(verdict: Verdict, metric: Metric) -> bool:
    # A pool was granted whether or not a request came through.
    return touches(verdict, metric.field) and not (
        metric.exact and verdict.code in _NOT_OF_THE_POOL
    )


def _cell(
    metric: Metric,
    trials: Sequence[TrialAnalysis],
    is_baseline: bool,
    base: _Side,
    values: dict[int, float],
    noise: NoiseFloor | None,
    estimate: Estimate,
) -> Cell:
    verdicts = _against(metric, trials)
    interval = None if is_baseline else estimate(base.values, values)
    shown = None if is_baseline else _effect(metric, interval, noise, base.values, values)
    sound = worst((*verdicts, *base.verdicts)) != "invalid"
    return Cell(
        variant=trials[0].variant,
        is_baseline=is_baseline,
        stamp=trials[0].stamp,
        value=centre(list(values.values())),
        replicates=tuple(sorted(values.items())),
        ratio=_ratio(metric, interval, base.values, values),
        interval=None if metric.exact else interval,
        effect=shown if sound or is_baseline else "unknown",
        improves=_improves(metric, shown) if sound else None,
        theory=_theory(metric, trials),
        verdict=worst(verdicts),
        verdicts=verdicts,
    )


def _ratio(
    metric: Metric, interval: Interval | None, base: dict[int, float], values: dict[int, float]
) -> float | None:
    if interval is None:
        return None
    mine, theirs = centre(list(values.values())), centre(list(base.values()))
    # Granted figures need no averaging of logarithms: 5,120 to 10,240 is 2 exactly.
    return mine / theirs if metric.exact and mine and theirs else interval.ratio


def _effect(
    metric: Metric,
    interval: Interval | None,
    noise: NoiseFloor | None,
    base: dict[int, float],
    values: dict[int, float],
) -> Effect:
    if metric.unit == "count" and interval is None:
        return effect_of_counts(base, values)
    if not metric.exact or interval is None:
        return effect(interval, noise)
    if abs(interval.ratio - 1.0) < 1e-9:
        return "no difference shown"
    return "higher" if interval.ratio > 1.0 else "lower"


def _improves(metric: Metric, shown: Effect | None) -> bool | None:
    if metric.better is None or shown not in ("higher", "lower"):
        return None
    return shown == metric.better


def _theory(metric: Metric, trials: Sequence[TrialAnalysis]) -> float | None:
    if metric.theory is None:
        return None
    return next((v for t in trials if (v := metric.theory(t)) is not None), None)
