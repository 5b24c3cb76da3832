"""What an analysis says: the types that reports and exports read.

Method: plain frozen values, computed anew from the stored facts at every read. Times are in
seconds, memory in bytes, lengths in tokens, energy in joules, shares in 0–1. ``None`` is
unknown, never zero; where something can be unknown for a reason worth telling, a ``reason``
stands beside it. Not covered: how any of it is computed (see the module named at each type)
and how it is written (``units`` and the report).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.analysis.quality_results import QualityAnalysis
from harness.units import Bytes, Fraction, Seconds, Tokens

Validity = Literal["valid", "suspect", "invalid"]
Effect = Literal["higher", "lower", "no difference shown", "no interval", "unknown"]
Better = Literal["higher", "lower"]
TheoryKind = Literal["expected", "at least", "at most"]
Unit = Literal[
    "bytes",
    "bytes_per_token",
    "tokens",
    "seconds",
    "per_s",
    "tokens_per_s",
    "count",
    "fraction",
    "joules",
    "joules_per_token",
    "concurrency",
]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of ``count`` values; all None when there are none.

    ``p99`` is None below 100 values, since it would be little more than the largest of them.
    """

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class SteadyState:
    """The same figures over the steady-state window (``metrics``), ramp and drain left out."""

    start_s: Seconds
    end_s: Seconds
    completed: int
    request_throughput: float | None
    output_throughput: float | None
    total_token_throughput: float | None
    ttft_s: Distribution
    tpot_s: Distribution
    itl_s: Distribution
    e2el_s: Distribution


@dataclass(frozen=True, slots=True)
class Summary:
    """One trial in figures, warm-ups left out (``metrics``).

    ``planned`` is what the workload asked for; ``failed`` counts records that did not complete.
    ``goodput`` is None where no objective was given. ``steady_reason`` says why ``steady`` is
    None. ``energy_source`` tells a counter difference from integrated power.
    ``client_loop_lag_p99_s`` is the largest lag where there are fewer than 100 readings.
    """

    planned: int | None
    completed: int
    failed: int
    duration_s: Seconds | None
    prompt_tokens: Tokens | None
    output_tokens: Tokens | None
    request_throughput: float | None
    output_throughput: float | None
    total_token_throughput: float | None
    goodput: float | None
    ttft_s: Distribution
    tpot_s: Distribution
    itl_s: Distribution
    e2el_s: Distribution
    send_lag_s: Distribution
    kv_usage_peak: Fraction | None
    kv_usage_mean: Fraction | None
    preemptions: float | None
    prefix_cache_hit_rate: Fraction | None
    requests_running_peak: float | None
    requests_waiting_peak: float | None
    rss_peak_bytes: Bytes | None
    gpu_used_peak_bytes: Bytes | None
    energy_j: float | None
    energy_source: Literal["counter", "power"] | None
    energy_per_output_token_j: float | None
    client_loop_lag_s: Distribution
    client_loop_lag_p99_s: Seconds | None
    client_cpu_share: Fraction | None
    client_cpu_share_peak: Fraction | None
    steady: SteadyState | None
    steady_reason: str | None


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio variant/baseline and its interval (``stats``).

    ``ratio`` is the geometric mean of the ratios paired by repeat. ``low``/``high`` are None
    below 3 pairs, and ``reason`` says so.
    """

    ratio: float
    low: float | None
    high: float | None
    replicates: int
    confidence: Fraction
    method: str
    reason: str | None = None

    @property
    def relative_width(self) -> float | None:
        """``high / low − 1``: 0.04 for an interval 4 % wide; None without an interval."""
        return None if self.low is None or self.high is None else self.high / self.low - 1.0


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The baseline against itself (A/A): the largest ratio between any two of its launches."""

    ratio: float
    launches: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one figure can be trusted, and why not (``verdict``).

    ``field`` is a metric (``ttft_s``), one of its figures (``ttft_s.p99``) or ``*`` for all of
    the trial's. ``code`` is for machines, ``reason`` a sentence with its evidence.
    """

    field: str
    verdict: Validity
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class KvFigures:
    """A KV pool, per GPU. ``kv_cache_tokens`` is the engine's own figure (concurrency × length)."""

    kv_bytes_per_token: float | None = None
    block_size: Tokens | None = None
    num_blocks: int | None = None
    kv_cache_tokens: Tokens | None = None
    max_concurrency: float | None = None
    kv_cache_memory_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True)
class Theory:
    """What the model's ``config.json`` and the flags predict for one trial (``compare``).

    ``kv_tokens_in_use``/``kv_bytes_in_use`` are the whole blocks of as many full-length requests
    as the closed loop holds at once and the pool takes; None in an open loop.
    """

    kv: KvFigures
    kv_bytes_per_request: Bytes | None
    concurrency_at_workload: float | None
    kv_tokens_in_use: Tokens | None = None
    kv_bytes_in_use: Bytes | None = None
    kv_cache_dtype: str | None = None
    notes: tuple[str, ...] = ()
    blocks_per_request: int | None = None


@dataclass(frozen=True, slots=True)
class TrialCeilings:
    """The best that one trial's device can do (``ceilings``): no TTFT or TPOT below, no rate above.

    ``mfu``/``mbu`` are operations done and bytes moved, at least, over time and peak.
    """

    device: str
    source: str
    bandwidth_bytes_per_s: float
    flops_per_s: float
    ttft_s: Seconds
    tpot_s: Seconds
    output_throughput: float
    mfu: Fraction | None = None
    mbu: Fraction | None = None


@dataclass(frozen=True, slots=True)
class TrialAnalysis:
    """One trial as it went.

    ``theory_reason`` says why ``theory`` is None, ``ceilings_reason`` why ``ceilings`` is. A trial
    that failed keeps the summary of the requests it finished; it enters no comparison.
    """

    trial_id: str
    variant: str
    is_baseline: bool
    workload: Mapping[str, Any]
    workload_label: str
    repeat: int
    launch: int
    status: str
    reason: str | None
    stamp: str
    summary: Summary | None
    theory: Theory | None
    theory_reason: str | None
    granted: KvFigures
    granted_observed: bool
    verdicts: tuple[Verdict, ...]
    ceilings: TrialCeilings | None = None
    ceilings_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant in one row: the median of its replicates, and its ratio to the baseline.

    ``replicates`` are (repeat, value) of the sealed trials whose value is known. ``effect`` is
    None for the baseline itself; ``improves`` is None unless a difference was shown and the
    metric has a better side. ``verdicts`` are those of its trials that touch this metric.
    """

    variant: str
    is_baseline: bool
    stamp: str
    value: float | None
    replicates: tuple[tuple[int, float], ...]
    ratio: float | None
    interval: Interval | None
    effect: Effect | None
    improves: bool | None
    theory: float | None
    verdict: Validity
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One metric across the variants; ``metric`` is a dotted name such as ``ttft_s.p50``.

    ``theory_is`` tells what the cells' ``theory`` is: the value expected, or a bound on it.
    """

    metric: str
    label: str
    unit: Unit
    better: Better | None
    noise: NoiseFloor | None
    cells: tuple[Cell, ...]
    theory_is: TheoryKind = "expected"

    def cell(self, variant: str) -> Cell | None:
        """The cell of ``variant``, if the row has one."""
        return next((cell for cell in self.cells if cell.variant == variant), None)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All variants under one workload; the baseline's cell comes first in each row."""

    workload: Mapping[str, Any]
    workload_label: str
    baseline: str
    variants: tuple[str, ...]
    rows: tuple[Row, ...]

    def row(self, metric: str) -> Row | None:
        """The row of ``metric``, if there is one."""
        return next((row for row in self.rows if row.metric == metric), None)

    def cell(self, metric: str, variant: str) -> Cell | None:
        """What one variant has in the row of ``metric``, if there is such a cell."""
        row = self.row(metric)
        return row.cell(variant) if row is not None else None


@dataclass(frozen=True, slots=True)
class KvComparison:
    """Predicted against granted KV pool of one variant, per GPU.

    ``error_tokens`` is granted − predicted; ``agrees`` is whether the two are the same to the
    block. ``granted_tokens_by_launch`` shows whether a repeated start was granted the same.
    ``concurrency_at_workload`` is the expected number of requests that fit, by workload label
    (the engine's own ``max_concurrency`` supposes every request at ``max_model_len``).
    ``capacity_ratio`` is of tokens granted over the baseline's, ``modelled_capacity_ratio`` of
    tokens predicted, which there is also where nothing was granted.
    """

    variant: str
    is_baseline: bool
    kv_cache_dtype: str | None
    engine_version: str | None
    attention_backend: str | None
    predicted: KvFigures | None
    predicted_reason: str | None
    granted: KvFigures
    error_tokens: int | None
    error_fraction: float | None
    agrees: bool | None
    granted_tokens_by_launch: tuple[tuple[int, Tokens], ...]
    concurrency_at_workload: Mapping[str, float | None]
    capacity_ratio: float | None
    bytes_per_token_ratio: float | None
    modelled_capacity_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One use of memory: what was predicted, what the engine said it took."""

    name: Literal["weights", "kv_pool", "activation_and_graphs", "other"]
    predicted_bytes: Bytes | None
    granted_bytes: Bytes | None


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where one variant's memory went (``ledger``); ``meter`` says what saw it.

    ``explained_bytes`` adds up each line's granted bytes (predicted where the engine is silent);
    ``remainder_bytes`` is ``loaded − before − explained``, what nobody accounts for.
    """

    variant: str
    trial_id: str
    meter: Literal["nvml", "workers", "rss"] | None
    lines: tuple[LedgerLine, ...]
    before_bytes: Bytes | None
    loaded_bytes: Bytes | None
    peak_bytes: Bytes | None
    explained_bytes: Bytes | None
    remainder_bytes: Bytes | None
    remainder_fraction: Fraction | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class OccupancyPoint:
    """The pool at one scrape of ``/metrics`` (``occupancy``), on the trial's clock.

    ``tokens_in_flight`` counts requests past their first chunk, prompt and output so far;
    ``tokens_sent`` adds the prompts that were sent and have shown no chunk yet (waiting, or in
    prefill): the truth lies between the two. ``block_tokens`` is the gauge × the pool.
    """

    t_s: Seconds
    tokens_in_flight: float
    tokens_sent: float
    block_tokens: float | None
    block_bytes: float | None
    in_flight_bytes: float | None
    device_bytes: Bytes | None


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Tokens in flight beside the block gauge over one trial, and the gap: fragmentation.

    The gap is taken at ``settled`` points alone, where no request is between send and first
    chunk, since only there the request log knows what is stored. Fractions are of the blocks in
    use.
    """

    points: tuple[OccupancyPoint, ...]
    settled: int
    fragmentation_mean_tokens: float | None
    fragmentation_peak_tokens: float | None
    fragmentation_mean_fraction: Fraction | None
    device_flat: bool | None
    device_span_bytes: Bytes | None


@dataclass(frozen=True, slots=True)
class HeadlineFinding:
    """One effect worth a sentence: a variant's metric against the baseline's, by workload.

    ``workload_label`` is None for figures of the pool, which no workload changes. ``codes`` name
    what is said against either side (``preemptions`` of the baseline may be the very effect).
    """

    variant: str
    workload_label: str | None
    metric: str
    unit: Unit
    better: Better | None
    baseline_value: float | None
    variant_value: float | None
    ratio: float | None
    interval: Interval | None
    noise: NoiseFloor | None
    effect: Effect
    improves: bool | None
    verdict: Validity
    codes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Headline:
    """What the report's opening sentence is made from; findings in order of weight.

    ``pool_limited_workloads`` are those where some variant queued or preempted for lack of
    blocks. ``theory_agrees`` is whether every predicted pool was granted to the block (None:
    nothing to compare).
    """

    question: str
    baseline: str
    findings: tuple[HeadlineFinding, ...]
    pool_limited_workloads: tuple[str, ...]
    theory_agrees: bool | None
    trials_sealed: int
    trials_failed: int
    trials_skipped: int
    trials_unfinished: int


@dataclass(frozen=True, slots=True)
class Caution:
    """Something that the reader of every figure should know, and what to do about it."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything that is said about one run of a scenario (``compare.analyse``)."""

    run_id: str
    scenario: str
    profile: str
    baseline: str
    headline: Headline
    trials: tuple[TrialAnalysis, ...]
    comparisons: tuple[Comparison, ...]
    kv: tuple[KvComparison, ...]
    ledgers: tuple[Ledger, ...]
    occupancy: Mapping[str, Occupancy]
    kv_budget_mode: str | None
    kv_budget_bytes: Bytes | None
    kv_budget_tokens: Tokens | None
    methods: Mapping[str, str]
    cautions: tuple[Caution, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    quality: QualityAnalysis | None = None
