"""Blocks per request and the price of eviction, read off a planted run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from harness.analysis.compare import analyse
from harness.analysis.eviction import evictions
from harness.record import EngineSample
from harness.specs.eviction import EvictionRule
from tests.analysis.build import with_run
from tests.records import EXERCISE, bench

LONG = {**EXERCISE, "context_tokens": 896, "output_tokens": 128, "warmup_requests": 0}


def planted(usage: float) -> tuple[Any, Any]:
    """A run whose second variant evicts; each scrape shows 2 requests and the given usage."""
    record, trials = bench(repeats=1, workloads=(LONG,))
    made = []
    for trial in trials:
        begin, end = trial.run.load_start_s, trial.run.load_end_s
        assert begin is not None
        assert end is not None
        steps = [begin + (end - begin) * part / 10 for part in range(11)]
        samples = tuple(
            EngineSample(t_s=at, kv_cache_usage=usage, requests_running=2.0) for at in steps
        )
        changed = replace(trial, engine_samples=samples)
        if not trial.run.trial.is_baseline:
            flags = {**trial.run.trial.server_flags, "kv_cache_dtype": "auto"}
            flags["max_num_batched_tokens"] = 128
            changed = with_run(
                changed,
                server_flags=flags,
                env={"KVBENCH_EVICTION": "sinks=4,window=256"},
            )
        made.append(changed)
    return analyse(record, made), made


def test_predicted_blocks_come_from_the_rule_in_the_servers_environment() -> None:
    """Blocks of 128: sinks take 1, ceil((255 + 128) / 128) + 1 = 4; 5 of ceil(1,024 / 128) = 8."""
    analysis, records = planted(0.5)
    full, evicting = evictions(analysis.trials, records, None)
    assert (full.rule, full.predicted_blocks) == (None, 8)
    assert evicting.rule == EvictionRule(4, 256)
    assert evicting.predicted_blocks == 5


def test_measured_blocks_are_the_usable_pool_over_the_running_requests() -> None:
    """The evicting variant's pool has 80 blocks, 79 usable: 79 × 8/79 / 2 = 4 per request."""
    analysis, records = planted(8 / 79)
    evicting = evictions(analysis.trials, records, None)[1]
    assert evicting.measured_blocks == 4.0
    assert evicting.holds


def test_more_blocks_than_predicted_do_not_hold() -> None:
    analysis, records = planted(16 / 79)
    evicting = evictions(analysis.trials, records, None)[1]
    assert evicting.measured_blocks == 8.0
    assert evicting.holds is False


def test_the_price_is_the_perplexity_of_the_same_texts_over_the_baselines() -> None:
    analysis, records = planted(0.1)
    seen = SimpleNamespace(perplexity=13.2, baseline_perplexity=12.0, perplexity_ratio=1.1)
    quality: Any = SimpleNamespace(
        variants=(SimpleNamespace(on_context=seen),),
        of=lambda _variant: SimpleNamespace(on_context=seen),
    )
    full, evicting = evictions(analysis.trials, records, quality)
    assert (full.perplexity, full.perplexity_ratio) == (12.0, 1.0)
    assert (evicting.perplexity, evicting.perplexity_ratio) == (13.2, 1.1)


def test_without_a_measured_quality_the_price_is_unknown() -> None:
    analysis, records = planted(0.1)
    assert {each.perplexity_ratio for each in evictions(analysis.trials, records, None)} == {None}


def test_a_run_without_eviction_has_nothing_to_show() -> None:
    record, trials = bench(repeats=1)
    assert evictions(analyse(record, trials).trials, trials, None) == ()
