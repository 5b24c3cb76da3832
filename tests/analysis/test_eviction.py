"""Blocks per request and the price of eviction, read off a planted run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from harness.analysis.compare import analyse
from harness.analysis.eviction import eviction_results, measured_decoding
from harness.record import EngineSample, RequestRecord, TrialRecord
from harness.specs.eviction import EvictionRule
from tests.analysis.build import with_run
from tests.analysis.strategy_build import record, scrapes
from tests.records import EXERCISE, bench

LONG = {**EXERCISE, "context_tokens": 896, "output_tokens": 128, "warmup_requests": 0}


def planted(usage: float) -> tuple[Any, Any]:
    """A run whose second variant evicts; each scrape shows 2 requests and the given usage."""
    run, trials = bench(repeats=1, workloads=(LONG,))
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
    return analyse(run, made), made


def test_predicted_blocks_come_from_the_rule_in_the_servers_environment() -> None:
    """Blocks of 128: sinks take 1, ceil((255 + 128) / 128) + 1 = 4; 5 of ceil(1,024 / 128) = 8."""
    analysis, records = planted(0.5)
    full, evicting = eviction_results(analysis.trials, records, None)
    assert (full.rule, full.predicted_blocks) == (None, 8)
    assert evicting.rule == EvictionRule(4, 256)
    assert evicting.predicted_blocks == 5


def test_measured_blocks_are_the_usable_pool_over_the_running_requests() -> None:
    """The evicting variant's pool has 80 blocks, 79 usable: 79 × 8/79 / 2 = 4 per request."""
    analysis, records = planted(8 / 79)
    evicting = eviction_results(analysis.trials, records, None)[1]
    assert evicting.measured_blocks == 4.0
    assert evicting.holds


def test_more_blocks_than_predicted_do_not_hold() -> None:
    analysis, records = planted(16 / 79)
    evicting = eviction_results(analysis.trials, records, None)[1]
    assert evicting.measured_blocks == 8.0
    assert evicting.holds is False


def test_the_price_is_the_perplexity_of_the_same_tails_over_the_baselines() -> None:
    analysis, records = planted(0.1)
    seen = SimpleNamespace(
        perplexity=13.2, baseline_perplexity=12.0, perplexity_ratio=1.1, positions=9
    )
    quality: Any = SimpleNamespace(
        variants=(SimpleNamespace(on_tail=seen), SimpleNamespace(on_tail=None)),
        pressed=(),
        of=lambda _variant: SimpleNamespace(on_tail=seen),
    )
    full, evicting = eviction_results(analysis.trials, records, quality)
    assert (full.perplexity, full.perplexity_ratio) == (12.0, 1.0)
    assert (evicting.perplexity, evicting.perplexity_ratio) == (13.2, 1.1)


def decoding(*seen: tuple[float, float, float]) -> TrialRecord:
    """Two requests with chunks at 2, 2.5 and 9 s, and 4, 4.5 and 9; samples (t, usage, running)."""
    requests = tuple(
        RequestRecord(
            *(index, "measured", 10, 10, 0.0, 0.0, first, 9.0),
            chunk_times_s=(first, first + 0.5, 9.0),
        )
        for index, first in enumerate((2.0, 4.0))
    )
    return record(requests=requests, samples=scrapes(*seen), blocks=101)


def test_only_samples_count_at_which_every_running_request_decodes() -> None:
    """Until 4 s one of the two is still in its prefill, which holds more: 0.8 is not counted.

    Of 101 blocks 100 are usable: 0.36 × 100 / 2 = 18 per request.
    """
    early = ((1.0, 0.1, 2.0), (2.0, 0.8, 2.0), (3.0, 0.8, 2.0))
    late = ((4.5, 0.4, 2.0), (5.0, 0.36, 2.0), (6.0, 0.36, 2.0), (7.0, 0.34, 2.0))
    assert measured_decoding(decoding(*early, *late), 101) == 18.0
    assert measured_decoding(decoding(*early), 101) is None


def test_the_prompts_own_step_is_no_decoding() -> None:
    """From 4 to 4.5 s the gauge still shows the second prompt before the rule cut it."""
    samples = ((4.1, 0.8, 2.0), (4.2, 0.8, 2.0), (4.3, 0.8, 2.0))
    assert measured_decoding(decoding(*samples), 101) is None


def test_a_moment_at_which_the_number_running_changes_is_not_counted() -> None:
    """A request that has just gone has left its blocks or not yet: nobody can tell."""
    samples = ((5.0, 0.36, 2.0), (6.0, 0.9, 2.0), (7.0, 0.18, 1.0))
    assert measured_decoding(decoding(*samples), 101) is None


def test_what_a_warm_up_held_is_not_of_the_load() -> None:
    """The load begins at 5.5 s: 0.9 × 100 / 2 = 45 blocks before it, 0.36 × 100 / 2 = 18 in it."""
    before = ((4.6, 0.9, 2.0), (4.8, 0.9, 2.0), (5.0, 0.9, 2.0))
    played = decoding(*before, *((t, 0.36, 2.0) for t in (6.0, 7.0, 8.0)))
    assert measured_decoding(played, 101) == 45.0
    later = replace(played, run=replace(played.run, load_start_s=5.5))
    assert measured_decoding(later, 101) == 18.0


def test_without_a_measured_quality_the_price_is_unknown() -> None:
    analysis, records = planted(0.1)
    assert {each.perplexity_ratio for each in eviction_results(analysis.trials, records, None)} == {
        None
    }


def test_a_run_without_eviction_has_nothing_to_show() -> None:
    run, trials = bench(repeats=1)
    assert eviction_results(analyse(run, trials).trials, trials, None) == ()
