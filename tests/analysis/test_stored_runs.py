"""What theory says against what the real engine did, on the records of real runs.

The runs lie trimmed in ``tests/data/runs``; each is of the CPU profile of a scenario that ships.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harness import store
from harness.analysis import cliff, prefix
from harness.analysis.compare import analyse
from harness.analysis.results import Analysis
from harness.analysis.scoreboard import scoreboard
from harness.record import BenchRecord, QualityRecords, TrialRecord
from harness.specs.kv_dtype import KV_DTYPES
from tests.report.test_scenarios import SCENARIOS, unpacked


@cache
def run(scenario: str) -> tuple[BenchRecord, tuple[TrialRecord, ...], Analysis, QualityRecords]:
    with TemporaryDirectory() as folder:
        where = unpacked(scenario, Path(folder))
        bench, trials = store.read_bench(where)
        quality = store.read_quality(where)
    return bench, trials, analyse(bench, trials, quality), quality


SERVED = [name for name in SCENARIOS if name != "static_vs_growing_cache"]


@pytest.mark.parametrize("scenario", SERVED)
def test_tokens_blocks_and_concurrency_are_the_engines_for_every_variant(scenario: str) -> None:
    _, _, analysis, _ = run(scenario)
    ran = [kv for kv in analysis.kv if kv.granted.num_blocks is not None]
    assert {kv.variant for kv in ran} == {kv.variant for kv in analysis.kv} - set(analysis.skipped)
    for kv in ran:
        assert kv.predicted is not None, kv.predicted_reason
        assert kv.predicted.num_blocks == kv.granted.num_blocks, kv.variant
        assert kv.predicted.block_size == kv.granted.block_size, kv.variant
        assert kv.predicted.kv_cache_tokens == kv.granted.kv_cache_tokens, kv.variant
        assert kv.predicted.max_concurrency == pytest.approx(kv.granted.max_concurrency, abs=0.005)


#: KV dtypes of other models or devices, whose layout is not modelled for this one.
ELSEWHERE = {"ultraquant_4bit", "fp8_ds_mla", "nvfp4_ds_mla", "fp8_inc"}


def test_every_skipped_variant_has_its_reason_and_what_theory_says_of_it() -> None:
    _, _, analysis, _ = run("kv_dtypes")
    skipped = {kv.variant: kv for kv in analysis.kv if kv.variant in analysis.skipped}
    assert set(skipped) == ELSEWHERE | {"nvfp4", "nvfp4_4over6"} | {
        name for name in KV_DTYPES if name.startswith(("int", "turbo")) or name.endswith("_head")
    }
    for kv in skipped.values():
        assert analysis.skipped[kv.variant]
        assert kv.granted.kv_cache_tokens is None
    for name in set(skipped) - ELSEWHERE:
        predicted = skipped[name].predicted
        assert predicted is not None
        assert predicted.kv_cache_tokens is not None
        assert predicted.kv_cache_tokens > 10_240
    for name in ELSEWHERE:
        assert skipped[name].predicted is None
        assert "modelled" in str(skipped[name].predicted_reason)


def test_two_bits_of_mantissa_move_the_answers_more_than_three_and_three_more_than_noise() -> None:
    _, _, analysis, _ = run("kv_dtypes")
    assert analysis.quality is not None
    kl = {v.variant: v.on_context.kl.value for v in analysis.quality.variants if v.on_context}
    assert kl["fp8_e5m2"] > 2 * kl["fp8_e4m3"] > 0
    floor = analysis.quality.floor
    assert floor is not None
    assert floor.on_context is not None
    assert kl["fp8_e4m3"] > floor.on_context.kl.value


def test_a_shared_prefix_takes_exactly_the_predicted_blocks() -> None:
    _, trials, analysis, _ = run("prefix_sharing")
    found = prefix.sharings(analysis.trials, trials)
    assert {each.caching for each in found} == {True, False}
    assert all(each.exact for each in found)
    # A prefix of 127 tokens fills no block of 128, so nothing of it can be shared.
    floor = [each for each in found if each.prefix_tokens < each.block_size]
    assert [each.measured_hit_tokens for each in floor] == [0] * len(floor)
    assert floor


def test_each_cliff_lies_in_the_step_that_theory_names() -> None:
    _, _, analysis, _ = run("capacity_cliff")
    found = cliff.cliffs(analysis)
    assert [each.context_tokens for each in found] == [256, 512, 1024]
    # 39 usable blocks of 128: requests of 3, 5 and 9 blocks.
    assert [each.fits for each in found] == [13, 7, 4]
    assert [each.first_over for each in found] == [14, 8, 5]
    assert all(each.within_one_step for each in found)


def test_runs_with_answers_fill_the_quality_column_and_those_without_leave_it_empty() -> None:
    boards = scoreboard([run(name)[:3:2] for name in ("token_eviction", "fp8_vs_fp16")])
    cells = {row.variant: row.cells["quality"] for row in boards.rows}
    assert {name: cell.stamp for name, cell in cells.items()} == {
        "sinks_and_512": "measured",
        "sinks_and_256": "measured",
        "window_512_only": "measured",
        "snapkv_512": "measured",
        "fp8": "measured",
    }
    assert all(cell.value is not None for cell in cells.values())
    # Without its sinks the model's text falls apart, and nobody recommends it.
    assert cells["window_512_only"].note == "fails the sanity gate"
    assert (cells["window_512_only"].value or 0) > 1.5
    assert any("its text fails the gate" in line for line in boards.recommendation)
    bare = scoreboard([run("attention_heads")[:3:2]])
    assert {row.cells["quality"].stamp for row in bare.rows} == {"not measured"}


def test_the_reduced_matrix_has_a_row_per_strategy_each_with_its_own_stamps() -> None:
    rows = {row.variant: row for row in scoreboard([run("strategies")[:3:2]]).rows}
    stamps = {name: row.cells["throughput"].stamp for name, row in rows.items()}
    assert stamps == {
        "fp8": "measured",
        "prefix_sharing": "measured",
        "window_256": "measured",
        "eviction": "measured",
        "one_kv_head": "measured",
        "offload": "skipped",
        "preallocated": "emulated",
    }
    # Random weights say nothing, and what was skipped has no figure anywhere.
    assert rows["one_kv_head"].cells["quality"].note == "random weights"
    assert {cell.value for cell in rows["offload"].cells.values()} == {None}
