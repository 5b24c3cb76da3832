"""What happened in one trial: requests, samples, environment, run. Facts only, no arithmetic.

Every time is in seconds on one monotonic clock whose zero is the start of the trial. ``None``
means that nobody told us. Anything that can be computed from these facts is computed at every
read (``harness.analysis``), so that a better definition improves old runs.

The types are encoded as JSON by msgspec; a change that an old reader would misread raises
``SCHEMA_VERSION``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from harness.units import Bytes, Fraction, Seconds, Tokens

SCHEMA_VERSION = 1

Phase = Literal["warmup", "measured"]
TrialStatus = Literal["started", "sealed", "failed", "skipped"]


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


@dataclass(frozen=True, slots=True)
class ClientSample:
    """The client watching itself: event-loop lag and CPU share since the sample before."""

    t_s: Seconds
    loop_lag_s: Seconds | None
    cpu_share: Fraction | None


Sample = GpuSample | ProcessSample | EngineSample | ClientSample


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

    ``command`` and ``env`` are what we set ourselves; nothing of the surrounding environment,
    so no secret is in them. ``device_before``/``loaded_*`` are read before start and once
    healthy. RSS counts a page that several processes share once for each, PSS once in all.
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
    pss_before_weights_bytes: Bytes | None = None
    pss_loaded_bytes: Bytes | None = None
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
class Environment:
    """The machine and software that a run was taken on."""

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
    damaged_lines: int = 0


@dataclass(frozen=True, slots=True)
class BenchRecord:
    """``bench.json``: one run of a scenario, written before the first server is launched.

    ``scenario`` is the resolved scenario (after profile and ``--set``); ``skipped`` maps a
    variant to the reason for which this device or engine can't run it.
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
    server_stop_s: Seconds | None = None
    kv_budget_bytes: Bytes | None = None
    kv_budget_tokens: Tokens | None = None
    skipped: dict[str, str] = field(default_factory=dict)
