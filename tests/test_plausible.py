"""Stored records that can't be true are told from those that can."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.plausible import run_fault, scenario_fault, sound_requests, with_sound_pool
from harness.record import CpuPeaks, GrantedKv, ServerFacts
from tests import records

TRIAL = records.bench(2, workloads=(records.EXERCISE,))[1][0]
GOOD = TRIAL.requests[-1]


def test_everything_that_we_write_ourselves_is_plausible() -> None:
    assert sound_requests(TRIAL.requests) == list(TRIAL.requests)
    assert run_fault(TRIAL.run) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"sent_s": 1e6},
        {"chunk_times_s": tuple(reversed(GOOD.chunk_times_s))},
        {"finished_s": GOOD.sent_s - 1.0},
        {"finished_s": 1e308},
        {"planned_send_s": -1e308},
        {"prompt_tokens": -1},
        {"output_tokens": 10**30},
        {"cached_prompt_tokens": -7},
        {"prompt_tokens": 64, "cached_prompt_tokens": 65},
    ],
)
def test_a_request_that_contradicts_itself_is_left_out(changes: dict[str, Any]) -> None:
    assert sound_requests([replace(GOOD, **changes)]) == []


def test_a_request_written_twice_counts_once() -> None:
    assert sound_requests([GOOD, GOOD]) == [GOOD]
    assert len(sound_requests([GOOD, replace(GOOD, phase="warmup")])) == 2


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"load_start_s": 10.0, "load_end_s": 1.0}, "before it begins"),
        ({"load_start_s": -5.0, "load_end_s": 1.0}, "before it begins"),
    ],
)
def test_a_load_that_runs_backwards_is_damage(changes: dict[str, Any], word: str) -> None:
    assert word in str(run_fault(replace(TRIAL.run, **changes)))


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("workload", {"context_tokens": 0}),
        ("workload", {"num_prompts": "x" * 1000}),
        ("workload", {"request_rate": "2"}),
        ("workload", {"length_mix": 1}),
        ("workload", {"length_mix": {"context_median": "64"}}),
        ("workload", {"turns": [2]}),
        ("server_flags", {"kv_cache_dtype": 8}),
        ("server_flags", {"hf_overrides": [1]}),
        ("model_config", {"num_hidden_layers": 10**18}),
    ],
)
def test_settings_that_no_run_can_have_had_are_damage(field: str, changes: dict[str, Any]) -> None:
    facts = TRIAL.run.trial
    changed = replace(facts, **{field: {**(getattr(facts, field) or {}), **changes}})
    fault = run_fault(replace(TRIAL.run, trial=changed))
    assert fault is not None
    assert next(iter(changes)) in fault
    assert len(fault) < 120


@pytest.mark.parametrize(("bandwidth", "flops"), [(1e-300, 1e9), (1e9, 0.0), (1e9, 1e308)])
def test_peaks_that_no_processor_has_are_damage(bandwidth: float, flops: float) -> None:
    environment = replace(TRIAL.run.environment, cpu_peaks=CpuPeaks(bandwidth, flops))
    assert "environment.cpu_peaks." in str(run_fault(replace(TRIAL.run, environment=environment)))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"kv_budget": "all"}, "scenario.kv_budget is 'all', not a table"),
        ({"kv_budget": {"mode": ["engine"]}}, "scenario.kv_budget.mode is ['engine'], not a text"),
        ({"variants": [1]}, "scenario.variants is [1], not a table"),
        ({"variants": {"fp8": 8}}, "scenario.variants.fp8 is 8, not a table"),
        ({"variants": {"fp8": {"flags": 1}}}, "scenario.variants.fp8.flags is 1, not a table"),
        ({"claims": -1.5}, "scenario.claims is -1.5, not a list"),
        ({"workloads": [{}, 7]}, "scenario.workloads.1 is 7, not a table"),
        ({"workloads": [{}, {"length_mix": "a"}]}, "scenario.workload.length_mix is 'a'"),
        ({"workloads": [{"request_rate": "2"}]}, "scenario.workload.request_rate is '2'"),
    ],
)
def test_a_stored_scenario_of_another_shape_is_damage_that_names_its_place(
    changes: dict[str, Any], fault: str
) -> None:
    good = records.bench(1, workloads=(records.EXERCISE,))[0].scenario
    assert scenario_fault(good) is None
    assert scenario_fault({**good, **changes}) == fault


@pytest.mark.parametrize(
    "changes",
    [
        {"block_size": 0},
        {"num_gpu_blocks": -5},
        {"kv_cache_tokens": 1 << 60},
        {"kv_cache_memory_bytes": 10**29},
        {"max_concurrency": 0.0},
        {"max_concurrency": 1e308},
    ],
)
def test_what_no_pool_can_have_is_unknown_and_costs_no_run(changes: dict[str, Any]) -> None:
    good = GrantedKv(128, 40, 5120, 2.5, 117_964_800, "auto", True)
    run = replace(TRIAL.run, server=ServerFacts("http://h/v1", launched=False, granted=good))
    assert with_sound_pool(run) is run
    assert run.server is not None
    told = replace(run, server=replace(run.server, granted=replace(good, **changes)))
    assert run_fault(told) is None
    server = with_sound_pool(told).server
    assert server is not None
    assert server.granted == replace(good, **dict.fromkeys(changes))
    assert with_sound_pool(replace(run, server=None)).server is None
