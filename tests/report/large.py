"""A run of very many requests, written with the store's own writers in a few seconds.

The figures follow a closed loop in which every request waits, is prefilled and decoded at a pace
drawn from a seeded generator; nothing is simulated beyond what the records must not contradict.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from harness import store
from harness.record import ClientSample, EngineSample, ProcessSample, RequestRecord, TrialRecord
from tests import records

#: Requests in flight at once, and output tokens (a chunk each) of a request.
CONCURRENCY = 64
OUTPUT_TOKENS = 32
CONTEXT_TOKENS = 512
SAMPLES_PER_TRIAL = 6_000


def write_large_run(root: Path, requests: int, repeats: int = 2) -> Path:
    """Store a run of ``requests`` in all, over two variants and ``repeats`` starts each."""
    each = requests // (2 * repeats)
    load = {
        **records.EXERCISE,
        "name": "long haul",
        "context_tokens": CONTEXT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "num_prompts": each,
        "concurrency": CONCURRENCY,
        "warmup_requests": 0,
    }
    small = {**load, "num_prompts": 4, "concurrency": 2}
    bench, trials = records.bench(repeats, workloads=(small,))
    bench = replace(bench, scenario={**bench.scenario, "workloads": [load]})
    run = root / bench.scenario_name / bench.run_id
    run.mkdir(parents=True)
    store.write_bench(run, bench)
    for trial in trials:
        _write_trial(run, trial, load, each)
    return run


def _write_trial(run: Path, trial: TrialRecord, load: dict[str, object], count: int) -> None:
    dice = random.Random(trial.run.trial.trial_id)  # noqa: S311 - repeatable, not secret
    facts = replace(trial.run.trial, workload=load)
    started = replace(trial.run, trial=facts, load_start_s=1.0)
    with store.TrialFolder(run, started) as folder:
        end = 1.0
        for request in _requests(dice, count):
            folder.append_request(request)
            end = max(end, request.finished_s or 0.0)
        for sample in _samples(dice, 1.0, end, count):
            folder.append_sample(sample)
        folder.log_path.write_text("INFO the engine started\n")
        folder.seal(replace(started, load_end_s=end))


def _requests(dice: random.Random, count: int) -> Iterator[RequestRecord]:
    slots = [1.0] * CONCURRENCY
    for index in range(count):
        slot = index % CONCURRENCY
        planned = slots[slot]
        sent = planned + 0.0004
        first = sent + 0.05 + dice.expovariate(1 / 0.05)
        gap = 0.008 + 0.004 * dice.random()
        chunks = tuple(first + gap * step for step in range(OUTPUT_TOKENS))
        slots[slot] = chunks[-1] + 0.0002
        yield RequestRecord(
            index=index,
            phase="measured",
            prompt_tokens_planned=CONTEXT_TOKENS,
            output_tokens_planned=OUTPUT_TOKENS,
            planned_send_s=planned,
            sent_s=sent,
            first_chunk_s=first,
            last_chunk_s=chunks[-1],
            finished_s=slots[slot],
            chunk_times_s=chunks,
            prompt_tokens=CONTEXT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            cached_prompt_tokens=0,
            finish_reason="length",
            text="and the cache is kept",
        )


def _samples(
    dice: random.Random, start: float, end: float, count: int
) -> Iterator[EngineSample | ProcessSample | ClientSample]:
    for step in range(SAMPLES_PER_TRIAL):
        share = step / (SAMPLES_PER_TRIAL - 1)
        now = start + share * (end - start)
        yield EngineSample(
            t_s=now,
            kv_cache_usage=0.6 + 0.3 * dice.random(),
            requests_running=float(CONCURRENCY - 4),
            requests_waiting=float(dice.randrange(8)),
            preemptions_total=0.0,
            prefix_cache_queries_total=0.0,
            prefix_cache_hits_total=0.0,
            prompt_tokens_total=share * count * CONTEXT_TOKENS,
            generation_tokens_total=share * count * OUTPUT_TOKENS,
        )
        yield ProcessSample(now, 1_400 << 20, 4)
        yield ClientSample(now, 0.0004, 0.08)
