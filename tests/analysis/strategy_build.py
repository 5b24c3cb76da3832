"""Analysed trials with numbers that a reader can follow, for the analyses of strategies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.analysis.compare import analyse
from harness.analysis.results import Analysis
from harness.record import BenchRecord, EngineSample, GrantedKv, RequestRecord, TrialRecord
from tests.records import BF16_BYTES_PER_TOKEN, BLOCK, EXERCISE
from tests.records import bench as whole_bench
from tests.records import trial as played_trial

__all__ = ["analysed", "record", "request", "scrapes"]


def request(
    index: int, prompt: int, output: int, *, sent: float = 0.0, first: float = 1.0, itl: float = 0.1
) -> RequestRecord:
    """A request whose chunks are ``itl`` apart, one token each."""
    chunks = tuple(first + itl * step for step in range(output))
    return RequestRecord(
        index=index,
        phase="measured",
        prompt_tokens_planned=prompt,
        output_tokens_planned=output,
        planned_send_s=sent,
        sent_s=sent,
        first_chunk_s=chunks[0],
        last_chunk_s=chunks[-1],
        finished_s=chunks[-1],
        chunk_times_s=chunks,
        prompt_tokens=prompt,
        output_tokens=output,
    )


def scrapes(*readings: tuple[float, float, float], **totals: float) -> tuple[EngineSample, ...]:
    """Scrapes of (time, usage, running), the counters the same in all of them."""
    return tuple(
        EngineSample(t_s=t, kv_cache_usage=usage, requests_running=running, **totals)
        for t, usage, running in readings
    )


def record(
    variant: str = "fp16",
    *,
    requests: tuple[RequestRecord, ...] = (),
    samples: tuple[EngineSample, ...] = (),
    blocks: int = 41,
    flags: dict[str, Any] | None = None,
    baseline: bool = True,
    repeat: int = 0,
    stamp: Any = "measured",
    caching: bool = False,
    **workload: Any,
) -> TrialRecord:
    """A sealed trial of 10 s on a pool of ``blocks`` blocks of 128 tokens."""
    base = played_trial(variant, is_baseline=baseline)
    load = {**EXERCISE, "name": None, "num_prompts": max(len(requests), 1), **workload}
    pool = blocks * BLOCK * BF16_BYTES_PER_TOKEN
    given = {"max_model_len": 2048, "kv_cache_memory_bytes": pool, **(flags or {})}
    size = f"{load['context_tokens']}x{load['concurrency']}"
    facts = replace(
        base.run.trial,
        trial_id=f"{variant}-{size}-r{repeat}-abc",
        workload=load,
        server_flags=given,
        stamp=stamp,
        repeat=repeat,
    )
    assert base.run.server is not None
    granted = GrantedKv(
        block_size=BLOCK,
        num_gpu_blocks=blocks,
        kv_cache_tokens=blocks * BLOCK,
        max_concurrency=blocks * BLOCK / 2048,
        kv_cache_memory_bytes=pool,
        enable_prefix_caching=caching,
    )
    run = replace(
        base.run,
        trial=facts,
        server=replace(base.run.server, granted=granted),
        load_start_s=0.0,
        load_end_s=10.0,
    )
    return TrialRecord(run=run, requests=requests, engine_samples=samples)


def analysed(*records: TrialRecord, **scenario: Any) -> tuple[BenchRecord, Analysis]:
    """The analysis of a bench that holds just these trials."""
    bench, _ = whole_bench(1)
    bench = replace(
        bench,
        trial_ids=tuple(each.run.trial.trial_id for each in records),
        scenario={**bench.scenario, **scenario},
    )
    return bench, analyse(bench, records)
