"""What happened in one trial: requests, samples, environment, run. Facts only, no arithmetic.

Every time is in seconds on one monotonic clock whose zero is the start of the trial. ``None``
means that nobody told us. Anything that can be computed from these facts is computed at every
read (``harness.analysis``), so that a better definition improves old runs.

The types are encoded as JSON by msgspec; a change that an old reader would misread raises
``SCHEMA_VERSION``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.units import Bytes, Fraction, Seconds, Tokens

SCHEMA_VERSION = 1

Phase = Literal["warmup", "measured"]
TrialStatus = Literal["started", "sealed", "failed", "skipped"]
#: How a trial ended, in words; the last is for one that left no record.
HOW_ENDED: Mapping[str, str] = {
    "sealed": "measured",
    "failed": "failed",
    "skipped": "skipped",
    "started": "not finished",
    "never begun": "never begun",
}


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request as decided before anything was sent.

    ``planned_send_s`` is None in a closed loop, where a request goes out when a slot is free.
    """

    index: int
    phase: Phase
    prompt_token_ids: tuple[int, ...]
    output_tokens: Tokens
    planned_send_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as it went: times, the server's own token counts, and how it ended.

    ``chunk_times_s`` holds the arrival of every content chunk, the first and last included.
    ``planned_send_s`` is, in a closed loop, the moment at which the slot became free.
    ``prompt_tokens``/``output_tokens`` come from the server's ``usage`` and are never guessed.
    """

    index: int
    phase: Phase
    prompt_tokens_planned: Tokens
    output_tokens_planned: Tokens
    planned_send_s: Seconds
    sent_s: Seconds
    first_chunk_s: Seconds | None = None
    last_chunk_s: Seconds | None = None
    finished_s: Seconds | None = None
    chunk_times_s: tuple[Seconds, ...] = ()
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    cached_prompt_tokens: Tokens | None = None
    finish_reason: str | None = None
    error: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one NVIDIA device through NVML; process bytes are those of our server."""

    t_s: Seconds
    device: int
    used_bytes: Bytes | None = None
    total_bytes: Bytes | None = None
    reserved_bytes: Bytes | None = None
    process_bytes: Bytes | None = None
    utilization: Fraction | None = None
    power_w: float | None = None
    energy_j: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    other_processes: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Resident set size of the server's process tree."""

    t_s: Seconds
    rss_bytes: Bytes | None
    processes: int


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One scrape of the engine's ``/metrics``; counters are totals since the server started."""

    t_s: Seconds
    kv_cache_usage: Fraction | None = None
    requests_running: float | None = None
    requests_waiting: float | None = None
    preemptions_total: float | None = None
    prefix_cache_queries_total: float | None = None
    prefix_cache_hits_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    external_cache_hits_total: float | None = None


@dataclass(frozen=True, slots=True)
class ClientSample:
    """The client watching itself: event-loop lag and CPU share since the sample before."""

    t_s: Seconds
    loop_lag_s: Seconds | None
    cpu_share: Fraction | None


@dataclass(frozen=True, slots=True)
class CacheSample:
    """A transformers cache after one step of one request.

    ``sequence_tokens`` are those whose keys and values the step could see; ``allocated_bytes``
    is the storage of the cache's tensors, which may be longer than the sequence, or nothing. Of
    kvpress: one sample per prompt, once its prefill is compressed to ``sequence_tokens``.
    """

    t_s: Seconds
    request_index: int
    sequence_tokens: Tokens
    allocated_bytes: Bytes


Sample = GpuSample | ProcessSample | EngineSample | ClientSample | CacheSample


@dataclass(frozen=True, slots=True)
class GrantedKv:
    """What the engine says it allocated (``vllm:cache_config_info`` and its log)."""

    block_size: Tokens | None = None
    num_gpu_blocks: int | None = None
    kv_cache_tokens: Tokens | None = None
    max_concurrency: float | None = None
    kv_cache_memory_bytes: Bytes | None = None
    cache_dtype: str | None = None
    enable_prefix_caching: bool | None = None


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server that a trial was played against: how it was started and what it reported.

    ``command`` is as it was given. ``env`` is what was set for it and what it inherited of the
    settings that bear on results (vLLM's, CUDA's, OpenMP's, torch's), secrets left out.
    ``device_before``/``loaded_*`` are read before start and once healthy. ``rss_loaded_bytes`` is
    the process tree's, in which a page that several processes share counts once for each;
    ``worker_*`` are the anonymous memory of the processes that hold weights and pool, when they
    begin to load the weights and once healthy.
    """

    url: str
    launched: bool
    command: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    served_model: str | None = None
    engine: str = "vllm"
    engine_version: str | None = None
    attention_backend: str | None = None
    granted: GrantedKv = field(default_factory=GrantedKv)
    startup_s: Seconds | None = None
    cpu_binding: str | None = None
    device_used_before_bytes: Bytes | None = None
    device_used_loaded_bytes: Bytes | None = None
    rss_loaded_bytes: Bytes | None = None
    worker_before_weights_bytes: Bytes | None = None
    worker_loaded_bytes: Bytes | None = None
    log_warnings: tuple[str, ...] = ()
    log_kv_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One NVIDIA device as NVML names it."""

    index: int
    name: str
    total_bytes: Bytes | None
    driver: str | None
    power_limit_w: float | None = None
    mig: bool | None = None


@dataclass(frozen=True, slots=True)
class CpuPeaks:
    """What a CPU did at best: memory bandwidth, and bf16 matrix products with all its cores."""

    bandwidth_bytes_per_s: float
    flops_per_s: float


#: The profile of a run against a server that was running already: its machine is out of reach.
ATTACHED = "attached"


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and software that a run was taken on.

    Where ``profile`` is ``attached`` that is the client's machine: the server may be on another.
    ``cpu_peaks`` are measured where the engine runs on the CPU; a GPU's stand in its data sheet.
    """

    profile: str
    kvbench_version: str
    python: str
    platform: str
    cpu: str | None
    cpu_cores: int | None
    memory_bytes: Bytes | None
    gpus: tuple[GpuFacts, ...] = ()
    packages: dict[str, str] = field(default_factory=dict)
    git_revision: str | None = None
    git_dirty: bool | None = None
    started_at: str | None = None
    cpu_peaks: CpuPeaks | None = None


@dataclass(frozen=True, slots=True)
class TrialFacts:
    """The resolved trial as it was run, in plain values, so that a record stands alone.

    ``launch`` counts server launches of the run: the replicate, and the order in time.
    ``model_config`` is the model's ``config.json`` with the variant's overrides merged in.
    """

    trial_id: str
    scenario: str
    variant: str
    is_baseline: bool
    repeat: int
    launch: int
    model: str
    server_flags: dict[str, Any]
    workload: dict[str, Any]
    seed: int
    kv_budget: dict[str, Any]
    slo: dict[str, float] = field(default_factory=dict)
    model_config: dict[str, Any] | None = None
    stamp: Literal["measured", "emulated", "modelled"] = "measured"
    engine: Literal["vllm", "reference", "kvpress"] = "vllm"


@dataclass(frozen=True, slots=True)
class Run:
    """One trial's ``run.json``; its requests and samples lie beside it.

    ``load_start_s``/``load_end_s`` bracket the measured phase: from the first measured request
    handed to the client until the last one ended.
    """

    schema_version: int
    trial: TrialFacts
    environment: Environment
    status: TrialStatus
    reason: str | None = None
    server: ServerFacts | None = None
    zero_unix_s: float | None = None
    load_start_s: Seconds | None = None
    load_end_s: Seconds | None = None
    sampler_cpu_share: Fraction | None = None
    sampler_interval_s: Seconds | None = None
    sampler_problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """Everything stored of one trial, read back."""

    run: Run
    requests: tuple[RequestRecord, ...]
    gpu_samples: tuple[GpuSample, ...] = ()
    process_samples: tuple[ProcessSample, ...] = ()
    engine_samples: tuple[EngineSample, ...] = ()
    client_samples: tuple[ClientSample, ...] = ()
    cache_samples: tuple[CacheSample, ...] = ()
    damaged_lines: int = 0


@dataclass(frozen=True, slots=True)
class BenchRecord:
    """``bench.json``: one run of a scenario, written before the first server is launched.

    ``scenario`` is the resolved scenario (after profile and ``--set``); ``skipped`` maps a
    variant to the reason for which this device or engine can't run it. ``beside`` names other
    runs that were measured on the machine at the same time.
    """

    schema_version: int
    run_id: str
    scenario_name: str
    scenario: dict[str, Any]
    environment: Environment
    command: tuple[str, ...]
    trial_ids: tuple[str, ...]
    status: Literal["started", "finished", "interrupted"] = "started"
    wall_s: Seconds | None = None
    server_startup_s: Seconds | None = None
    load_s: Seconds | None = None
    quality_s: Seconds | None = None
    server_stop_s: Seconds | None = None
    kv_budget_bytes: Bytes | None = None
    kv_budget_tokens: Tokens | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()


# ── answer quality ──────────────────────────────────────────────────────────────────────────

QualityKind = Literal["reference", "self", "variant", "kvpress"]
PassStatus = Literal["started", "sealed", "failed"]


@dataclass(frozen=True, slots=True)
class QualityPrompt:
    """One question put to every server alike, as token ids of exact length.

    ``task`` is ``summarise``, ``extract``, ``answer``, ``continue``, ``instruct``, ``user``,
    ``needle`` or ``multikey``; ``expected`` are the answers that count as right (empty: nobody
    can grade it). ``depth`` is where in the context the needle stands, 0 to 1.
    ``passage`` is the text that the prompt quotes, ``instruction`` what is asked of it.
    """

    index: int
    task: str
    source: str
    prompt_token_ids: tuple[int, ...]
    instruction: str
    passage: str
    expected: tuple[str, ...] = ()
    context_tokens: Tokens | None = None
    depth: Fraction | None = None


@dataclass(frozen=True, slots=True)
class QualityAnswer:
    """What a server answered to one prompt, greedily and at a length of its own."""

    index: int
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class QualityScore:
    """How probable a server finds the baseline's prompt and answer, token by token.

    ``positions`` are places in prompt + answer (the answer begins at ``prompt_length``); the
    context is sampled evenly, the answer is whole. Per position: natural logarithm of the
    probability of the token that stands there, its rank (1 is the likeliest), and the likeliest
    tokens with theirs.
    """

    index: int
    prompt_length: Tokens
    positions: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()
    top_ids: tuple[tuple[int, ...], ...] = ()
    top_logprobs: tuple[tuple[float, ...], ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class QualityPass:
    """One server asked all questions: the baseline first, the baseline again, each variant.

    Of kind ``kvpress`` it is transformers that scored the tails of the prompts behind a compressed
    prefill (``scores`` alone, no answers).
    ``concurrency`` and ``reverse`` say in which batches and order; ``launches`` are the server
    starts that took part (more than one after a resume). ``left_out`` names prompts of a user's
    file that could not be used.
    """

    schema_version: int
    pass_id: str
    kind: QualityKind
    variant: str
    status: PassStatus
    launches: tuple[int, ...]
    concurrency: int
    reverse: bool
    reason: str | None = None
    wall_s: Seconds | None = None
    log_warnings: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """One question to the judge and its verdict on the two answers as they were shown.

    ``kind`` is ``real``, or one of the controls ``identical``, ``degraded``, ``known``.
    ``verdict`` is what the judge said of the first (A) and second (B) answer shown; ``order`` says
    which was which: ``ab`` shows the baseline's (a control's better one) first. None: no verdict
    could be had, and ``error`` says why.
    """

    pair_id: str
    kind: Literal["real", "identical", "degraded", "known"]
    variant: str | None
    prompt_index: int
    order: Literal["ab", "ba"]
    verdict: Literal["A", "B", "tie"] | None
    reason: str | None = None
    attempts: int = 1
    malformed: int = 0
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class JudgeRun:
    """Who judged; no key is ever part of it. ``is_self`` marks the baseline's own server."""

    schema_version: int
    judge_id: str
    model: str
    url: str
    is_self: bool
    margin: Fraction
    status: PassStatus
    reason: str | None = None
    wall_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One pass, read back."""

    head: QualityPass
    answers: tuple[QualityAnswer, ...] = ()
    scores: tuple[QualityScore, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgeRecord:
    """One judge's work, read back."""

    head: JudgeRun
    judgements: tuple[Judgement, ...] = ()


@dataclass(frozen=True, slots=True)
class QualityRecords:
    """Everything stored of a run's answer quality."""

    prompts: tuple[QualityPrompt, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    judges: tuple[JudgeRecord, ...] = ()
    damaged_lines: int = 0
