"""Stored runs that are alike, apart, slower, or unlike, for tests of what compares runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from harness.record import BenchRecord, RequestRecord, Run, TrialRecord
from tests import records

#: Few enough requests that a whole run takes a blink.
SMALL: dict[str, Any] = {**records.EXERCISE, "num_prompts": 8, "output_tokens": 8}
TIGHT: dict[str, Any] = {**records.KV_BOUND, "num_prompts": 10, "output_tokens": 16}

Stored = tuple[BenchRecord, tuple[TrialRecord, ...]]


@cache
def run(repeats: int = 3, variants: tuple[str, ...] = ("fp16", "fp8")) -> Stored:
    """A run of one small load; every call returns the very same records."""
    return records.bench(repeats, variants=variants, workloads=(SMALL,))


def again(stored: Stored, run_id: str = "20300103-000000-later") -> Stored:
    """The same figures as another run's: launched a day later, under another id."""
    bench, trials = stored
    later = [
        with_run(t, lambda r: replace(r, zero_unix_s=(r.zero_unix_s or 0) + 86_400)) for t in trials
    ]
    return replace(bench, run_id=run_id), tuple(later)


def with_run(trial: TrialRecord, change: Callable[[Run], Run]) -> TrialRecord:
    return replace(trial, run=change(trial.run))


def slower(trial: TrialRecord, factor: float) -> TrialRecord:
    """The same trial with every time stretched: throughputs divided by ``factor`` exactly."""
    head = trial.run
    return replace(
        trial,
        run=replace(
            head,
            load_start_s=_times(head.load_start_s, factor),
            load_end_s=_times(head.load_end_s, factor),
        ),
        requests=tuple(_stretched(request, factor) for request in trial.requests),
        engine_samples=tuple(replace(s, t_s=s.t_s * factor) for s in trial.engine_samples),
        process_samples=tuple(replace(s, t_s=s.t_s * factor) for s in trial.process_samples),
        client_samples=tuple(replace(s, t_s=s.t_s * factor) for s in trial.client_samples),
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _stretched(request: RequestRecord, factor: float) -> RequestRecord:
    return replace(
        request,
        planned_send_s=request.planned_send_s * factor,
        sent_s=request.sent_s * factor,
        first_chunk_s=_times(request.first_chunk_s, factor),
        last_chunk_s=_times(request.last_chunk_s, factor),
        finished_s=_times(request.finished_s, factor),
        chunk_times_s=tuple(time * factor for time in request.chunk_times_s),
    )


def all_slower(stored: Stored, factor: float) -> Stored:
    bench, trials = stored
    return bench, tuple(slower(trial, factor) for trial in trials)


def noisy(stored: Stored, factors: Sequence[float]) -> Stored:
    """Every launch of one repeat stretched by that repeat's factor."""
    bench, trials = stored
    return bench, tuple(slower(trial, factors[trial.run.trial.repeat]) for trial in trials)


def in_scenario(stored: Stored, **keys: Any) -> Stored:
    """The run with keys of its resolved scenario changed."""
    bench, trials = stored
    return replace(bench, scenario={**bench.scenario, **keys}), trials


def on_machine(stored: Stored, **facts: Any) -> Stored:
    """The run with facts of its machine changed."""
    bench, trials = stored
    machine = replace(bench.environment, **facts)
    return (
        replace(bench, environment=machine),
        tuple(with_run(t, lambda r: replace(r, environment=machine)) for t in trials),
    )


def with_trials(stored: Stored, change: Callable[[TrialRecord], TrialRecord | None]) -> Stored:
    """The run with its trials changed; None takes one away."""
    bench, trials = stored
    changed = (change(trial) for trial in trials)
    return bench, tuple(trial for trial in changed if trial is not None)
