"""Records of a reference engine that keeps exactly to a given law, for tests of scaling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.record import (
    SCHEMA_VERSION,
    CacheSample,
    RequestRecord,
    Run,
    ServerFacts,
    TrialFacts,
    TrialRecord,
)
from tests.records import BF16_BYTES_PER_TOKEN, CPU_MACHINE, SMOLLM2_CONFIG

#: Seconds of the step that sees so many tokens, in the launch of this repeat.
Law = Callable[[int, int], float]
LOADS = ((16, 368), (128, 8), (256, 8), (512, 8), (1024, 8))


def request(prompt: int, output: int, step_s: Callable[[int], float]) -> RequestRecord:
    """A request whose step i lasts what the law says of prompt + i tokens; sent at 1 s."""
    times, now = [], 1.0
    for step in range(output):
        now += step_s(prompt + step)
        times.append(now)
    return RequestRecord(
        index=0,
        phase="measured",
        prompt_tokens_planned=prompt,
        output_tokens_planned=output,
        planned_send_s=1.0,
        sent_s=1.0,
        first_chunk_s=times[0],
        last_chunk_s=times[-1],
        finished_s=now,
        chunk_times_s=tuple(times),
        prompt_tokens=prompt,
        output_tokens=output,
        finish_reason="length",
    )


def trial(
    variant: str, prompt: int, output: int, repeat: int, law: Law, flags: dict[str, Any]
) -> TrialRecord:
    seen = prompt + output - 1
    held = {"none": 0, "growing": seen}.get(flags["cache"], flags.get("max_cache_len", 0))
    workload = {
        "context_tokens": prompt,
        "output_tokens": output,
        "num_prompts": 1,
        "concurrency": 1,
        "request_rate": None,
        "warmup_requests": 0,
        "label": f"{prompt}+{output}",
    }
    facts = TrialFacts(
        trial_id=f"{variant}-{prompt}-{output}-r{repeat}",
        scenario="cache_vs_no_cache",
        variant=variant,
        is_baseline=variant == "no_cache",
        repeat=repeat,
        launch=repeat,
        model="smollm2-135m-instruct",
        server_flags=flags,
        workload=workload,
        seed=0,
        kv_budget={"mode": "engine"},
        model_config=SMOLLM2_CONFIG,
        engine="reference",
    )
    run = Run(
        schema_version=SCHEMA_VERSION,
        trial=facts,
        environment=replace(CPU_MACHINE),
        status="sealed",
        server=ServerFacts(
            url="", launched=True, engine="reference", engine_version="transformers 5.19.0"
        ),
        load_start_s=1.0,
        load_end_s=100.0,
    )
    return TrialRecord(
        run=run,
        requests=(request(prompt, output, lambda seen: law(seen, repeat)),),
        cache_samples=(
            CacheSample(1.0, 0, prompt, 0 if held == 0 else held * BF16_BYTES_PER_TOKEN),
            CacheSample(9.0, 0, seen, held * BF16_BYTES_PER_TOKEN),
        ),
    )


def trials(
    variant: str, law: Law, flags: dict[str, Any], repeats: int = 3, loads: Any = LOADS
) -> list[TrialRecord]:
    return [
        trial(variant, prompt, output, repeat, law, flags)
        for repeat in range(repeats)
        for prompt, output in loads
    ]
