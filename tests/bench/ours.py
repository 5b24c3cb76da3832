"""Plays one closed loop with our client in a process of its own and prints what it measured."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from harness.analysis.latency import pooled_itl, tpot, ttft
from harness.clock import Clock
from harness.load import Target, play
from harness.record import ClientSample, PlannedRequest, RequestRecord
from harness.scenario import KvBudget, Trial, Workload
from harness.workload import SAFE_TOKENS, plan
from tests.bench.vllm_bench_serve import run_pinned


def requests(
    prompts: int, concurrency: int, input_tokens: int, output_tokens: int, seed: int
) -> tuple[PlannedRequest, ...]:
    """The plan of such a workload, two warm-ups included, as a bench makes it."""
    workload = Workload(
        context_tokens=input_tokens,
        output_tokens=output_tokens,
        num_prompts=prompts,
        concurrency=concurrency,
    )
    trial = Trial(
        trial_id="bench",
        scenario="bench",
        profile="cpu",
        model=None,
        attach=None,
        variant="only",
        is_baseline=True,
        repeat=0,
        launch=0,
        flags={},
        env={},
        workload=workload,
        seed=seed,
        kv_budget=KvBudget(),
    )
    return plan(trial, SAFE_TOKENS)


def measure(
    url: str,
    model: str,
    prompts: int,
    concurrency: int,
    input_tokens: int,
    output_tokens: int,
    seed: int = 0,
    workers: int = 1,
) -> dict[str, Any]:
    """Play it; the names are those of ``vllm bench serve``, times in seconds."""
    records: list[RequestRecord] = []
    samples: list[ClientSample] = []
    outcome = play(
        requests(prompts, concurrency, input_tokens, output_tokens, seed),
        Target(url, model),
        concurrency=concurrency,
        clock=Clock(),
        on_record=records.append,
        on_sample=samples.append,
        load_workers=workers,
    )
    measured = [record for record in records if record.phase == "measured"]
    failed = [record.error for record in measured if record.error]
    if failed or outcome.load_start_s is None or outcome.load_end_s is None:
        raise SystemExit(f"{len(failed)} requests failed, the first with: {failed[:1]}")
    duration_s = outcome.load_end_s - outcome.load_start_s
    tokens = sum(record.output_tokens or 0 for record in measured)
    during = [sample for sample in samples if sample.t_s >= outcome.load_start_s]
    return {
        "output_throughput": tokens / duration_s,
        "request_throughput": len(measured) / duration_s,
        "ttfts": [ttft(record) for record in measured],
        "tpots": [tpot(record) for record in measured],
        "itls": [pooled_itl([record]).tolist() for record in measured],
        "send_lags": [record.sent_s - record.planned_send_s for record in measured],
        "total_input_tokens": sum(record.prompt_tokens or 0 for record in measured),
        "loop_lag_s": max((sample.loop_lag_s or 0.0 for sample in during), default=None),
        "cpu_share": max((sample.cpu_share or 0.0 for sample in during), default=None),
    }


def measure_apart(cpu: int | None = None, **arguments: Any) -> dict[str, Any]:
    """``measure`` in a fresh process, on one core if one is named."""
    command = [sys.executable, "-m", "tests.bench.ours", json.dumps(arguments)]
    return json.loads(run_pinned(command, cpu))


def main() -> None:
    """Read the arguments of ``measure`` as JSON, print its result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arguments")
    arguments = json.loads(parser.parse_args().arguments)
    sys.stdout.write(json.dumps(measure(**arguments)))


if __name__ == "__main__":
    main()
