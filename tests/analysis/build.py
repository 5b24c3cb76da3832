"""Small records with numbers that a reader can follow in the head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.record import (
    EngineSample,
    GpuSample,
    GrantedKv,
    RequestRecord,
    Run,
    ServerFacts,
    TrialRecord,
)
from tests.records import CPU_MACHINE, EXERCISE, SMOLLM2_CONFIG
from tests.records import trial as played_trial

__all__ = ["SMOLLM2_CONFIG", "gpu", "judged", "request", "scrape", "server", "trial", "with_run"]


def request(
    index: int = 0,
    *,
    sent: float = 0.0,
    chunks: tuple[float, ...] = (1.0, 2.0),
    prompt: int | None = 100,
    output: int | None = None,
    lag: float = 0.0,
    **changes: Any,
) -> RequestRecord:
    """A request with one token per chunk, unless ``output`` says otherwise."""
    tokens = len(chunks) if output is None else output
    made = RequestRecord(
        index=index,
        phase="measured",
        prompt_tokens_planned=100,
        output_tokens_planned=tokens,
        planned_send_s=sent - lag,
        sent_s=sent,
        first_chunk_s=chunks[0] if chunks else None,
        last_chunk_s=chunks[-1] if chunks else None,
        finished_s=chunks[-1] if chunks else sent,
        chunk_times_s=chunks,
        prompt_tokens=prompt,
        output_tokens=tokens,
    )
    return replace(made, **changes)


def scrape(t: float, **values: float) -> EngineSample:
    return EngineSample(t_s=t, **values)


def gpu(t: float, device: int = 0, **values: Any) -> GpuSample:
    return GpuSample(t_s=t, device=device, **values)


def server(**changes: Any) -> ServerFacts:
    """A launched server with a pool of 11 blocks of 16 tokens (10 of them usable)."""
    granted = GrantedKv(
        block_size=16, num_gpu_blocks=11, kv_cache_tokens=176, kv_cache_memory_bytes=176_000
    )
    made = ServerFacts(
        url="http://127.0.0.1:1/v1",
        launched=True,
        engine_version="0.32.0",
        attention_backend="CPU_ATTN",
        granted=granted,
    )
    return replace(made, **changes)


def trial(
    *requests: RequestRecord, start: float = 0.0, end: float | None = 10.0, **samples: Any
) -> TrialRecord:
    """A sealed trial whose measured phase is ``start`` to ``end``."""
    base = played_trial()
    facts = replace(
        base.run.trial, workload={**EXERCISE, "num_prompts": len(requests)}, slo={}, variant="fp8"
    )
    run = replace(
        base.run,
        trial=replace(facts, is_baseline=False),
        environment=CPU_MACHINE,
        server=server(),
        load_start_s=start,
        load_end_s=end,
        sampler_cpu_share=None,
        sampler_interval_s=None,
    )
    return TrialRecord(run=run, requests=requests, **samples)


def with_run(record: TrialRecord, **changes: Any) -> TrialRecord:
    """The same record with fields of its run, trial or server changed, by where they belong."""
    run: Run = record.run
    for name, value in changes.items():
        if hasattr(run, name):
            run = replace(run, **{name: value})
        elif hasattr(run.trial, name):
            run = replace(run, trial=replace(run.trial, **{name: value}))
        else:
            assert run.server is not None
            run = replace(run, server=replace(run.server, **{name: value}))
    return replace(record, run=run)


def judged(verdicts: Any, code: str) -> dict[str, str]:
    """Fields → verdicts of one code."""
    return {verdict.field: verdict.verdict for verdict in verdicts if verdict.code == code}
