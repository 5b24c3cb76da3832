"""What theory says of variants whose server never started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.analysis.compare import analyse
from harness.record import BenchRecord, TrialRecord
from harness.report.evidence import pools
from tests.analysis.strategy_build import record, request
from tests.records import bench as whole_bench

#: 40 blocks of 128 tokens of 23,040 B.
POOL = 40 * 128 * 23_040


def skipped(variant: str, **flags: Any) -> TrialRecord:
    """As the bench leaves a variant that the device can't run: no server, no request."""
    made = record(variant, baseline=False, flags={"kv_cache_memory_bytes": None, **flags})
    own = {name: value for name, value in made.run.trial.server_flags.items() if value is not None}
    budget = {"mode": "equal_bytes", "value_bytes": POOL, "value_tokens": None}
    facts = replace(made.run.trial, server_flags=own, kv_budget=budget)
    run = replace(made.run, trial=facts, status="skipped", reason="not here", server=None)
    return replace(made, run=replace(run, load_start_s=None, load_end_s=None))


def run_of(*records: TrialRecord, **changes: Any) -> BenchRecord:
    made, _ = whole_bench(1)
    names = tuple(each.run.trial.trial_id for each in records)
    lost = {r.run.trial.variant: "not here" for r in records if r.run.status == "skipped"}
    return replace(made, trial_ids=names, skipped=lost, kv_budget_bytes=POOL, **changes)


def ran() -> TrialRecord:
    return record(requests=(request(0, 100, 8),))


def test_a_skipped_variants_pool_is_modelled_from_the_stated_bytes() -> None:
    trials = [ran(), skipped("int4", kv_cache_dtype="int4_per_token_head")]
    analysis = analyse(run_of(*trials), trials)
    (pool,) = [kv for kv in analysis.kv if kv.variant == "int4"]
    assert pool.predicted is not None
    # 2 · 30 layers · 3 heads · (64 / 2 + 4 B of scale) = 6,480 B; 117,964,800 / (6,480 · 128)
    # = 142.2 blocks of 128 tokens.
    assert pool.predicted.kv_bytes_per_token == 6_480
    assert (pool.predicted.num_blocks, pool.predicted.kv_cache_tokens) == (142, 18_176)
    # A prediction is no grant, and no ratio of grants.
    assert pool.granted.kv_cache_tokens is None
    assert (pool.capacity_ratio, pool.agrees) == (None, None)
    # The baseline's pool is planned to hold 41 blocks of 128 = 5,248 tokens: 18,176 / 5,248.
    assert pool.modelled_capacity_ratio == pytest.approx(3.4634, abs=1e-4)
    (line,) = [line for line in pools(analysis) if line.variant == "int4"]
    assert (line.predicted, line.granted, line.note) == ("18,176", "—", "modelled: skipped here")


def test_what_was_not_run_can_not_spoil_answers() -> None:
    trials = [ran(), skipped("int4", kv_cache_dtype="int4_per_token_head")]
    told = [caution.code for caution in analyse(run_of(*trials), trials).cautions]
    assert "quality_unmeasured" not in told


def test_equal_tokens_are_turned_into_the_bytes_that_they_take() -> None:
    wanted = skipped("int4", kv_cache_dtype="int4_per_token_head")
    facts = replace(wanted.run.trial, kv_budget={"mode": "equal_tokens"})
    trials = [ran(), replace(wanted, run=replace(wanted.run, trial=facts))]
    made = replace(run_of(*trials), kv_budget_bytes=None, kv_budget_tokens=5_120)
    (pool,) = [kv for kv in analyse(made, trials).kv if kv.variant == "int4"]
    assert pool.predicted is not None
    assert pool.predicted.kv_cache_tokens == 5_120


@pytest.mark.parametrize("mode", ["engine", "equal_bytes"])
def test_where_nobody_stated_a_pool_only_the_layout_is_known(mode: str) -> None:
    wanted = skipped("int4", kv_cache_dtype="int4_per_token_head")
    facts = replace(wanted.run.trial, kv_budget={"mode": mode})
    trials = [ran(), replace(wanted, run=replace(wanted.run, trial=facts))]
    made = replace(run_of(*trials), kv_budget_bytes=None)
    (pool,) = [kv for kv in analyse(made, trials).kv if kv.variant == "int4"]
    assert pool.predicted is not None
    assert pool.predicted.kv_bytes_per_token == 6_480
    assert pool.predicted.kv_cache_tokens is None


def test_a_variant_that_asks_for_eviction_by_its_environment_is_modelled_so() -> None:
    step = {"max_num_batched_tokens": 128}
    trials = [ran(), skipped("evicting", **step), skipped("plain", **step)]
    variants = {"evicting": {"env": {"KVBENCH_EVICTION": "sinks=0,window=256"}}, "plain": {}}
    made = run_of(*trials)
    made = replace(made, scenario={**made.scenario, "variants": variants})
    pool = {kv.variant: kv.predicted for kv in analyse(made, trials).kv}
    assert pool["evicting"] is not None
    assert pool["plain"] is not None
    assert (pool["evicting"].max_concurrency or 0) > (pool["plain"].max_concurrency or 0)


def test_a_pool_that_the_environment_asks_for_is_that_of_the_engine() -> None:
    """1 GiB / (6,480 B · 128 tokens) = 1,294.5 blocks."""
    wanted = skipped("int4", kv_cache_dtype="int4_per_token_head")
    facts = replace(wanted.run.trial, kv_budget={"mode": "engine"})
    trials = [ran(), replace(wanted, run=replace(wanted.run, trial=facts))]
    made = run_of(*trials)
    variants = {"int4": {"env": {"VLLM_CPU_KVCACHE_SPACE": "1"}}}
    made = replace(made, scenario={**made.scenario, "variants": variants})
    (pool,) = [kv for kv in analyse(made, trials).kv if kv.variant == "int4"]
    assert pool.predicted is not None
    assert pool.predicted.num_blocks == 1_294
