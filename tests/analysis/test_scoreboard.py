from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import store
from harness.analysis.compare import analyse
from harness.analysis.quality_results import QualityAnalysis, SanityGate, VariantQuality
from harness.analysis.results import Analysis
from harness.analysis.scoreboard import METRICS, ScoreRow, recommendation, scoreboard
from harness.errors import InputError
from harness.record import BenchRecord, TrialRecord
from tests import records
from tests.analysis import reference
from tests.analysis.test_scaling import GROWING, NONE, with_cache, without_cache
from tests.report.stored import unpacked


def pair(
    bench: BenchRecord, trials: tuple[TrialRecord, ...] | list[TrialRecord]
) -> tuple[BenchRecord, Analysis]:
    return bench, analyse(bench, trials)


def variants(bench: BenchRecord, given: dict[str, Any]) -> BenchRecord:
    return replace(bench, scenario={**bench.scenario, "variants": given})


def fp8(repeats: int = 3) -> tuple[BenchRecord, tuple[TrialRecord, ...]]:
    bench, trials = records.bench(repeats)
    flags = {name: {"flags": flags} for name, flags in records.VARIANTS.items()}
    return variants(bench, flags), trials


def row(*runs: tuple[BenchRecord, Analysis], variant: str = "fp8") -> ScoreRow:
    return next(found for found in scoreboard(runs).rows if found.variant == variant)


def test_fp8_halves_the_bytes_and_doubles_what_fits_as_the_engine_granted_it() -> None:
    found = row(pair(*fp8()))
    assert found.strategy == "KV dtype fp8"
    assert (found.effort, found.change) == ("flags", "kv_cache_dtype=fp8")
    # 40 blocks of 128 tokens in 16 bit, 80 in 8 bit, in the same bytes.
    assert found.cells["memory"].value == pytest.approx(2.0)
    assert found.cells["capacity"].value == pytest.approx(2.0)
    assert found.cells["throughput"].low is not None
    assert {found.cells[m].stamp for m in ("memory", "capacity", "throughput", "ttft")} == {
        "measured"
    }


def test_a_row_is_judged_by_the_load_that_the_pool_limits() -> None:
    assert (row(pair(*fp8())).workload_label or "").startswith("kv-bound")


def test_sharing_is_judged_by_the_load_that_shares_and_others_are_not() -> None:
    bench, trials = fp8()

    def sharing(trial: TrialRecord) -> TrialRecord:
        if trial.run.trial.workload["name"] != "exercise":
            return trial
        load = {**trial.run.trial.workload, "shared_prefix_tokens": 256}
        return replace(trial, run=replace(trial.run, trial=replace(trial.run.trial, workload=load)))

    flags = {
        "fp16": {"flags": {"enable_prefix_caching": False}},
        "fp8": {"flags": {"enable_prefix_caching": True}},
    }
    shared = [sharing(trial) for trial in trials]
    found = row(pair(variants(bench, flags), shared))
    assert (found.workload_label or "").startswith("exercise")
    # A variant that stops sharing is seen in the same load.
    stopped = {"fp16": flags["fp8"], "fp8": flags["fp16"]}
    found = row(pair(variants(bench, stopped), shared))
    assert (found.strategy, found.family) == ("no prefix sharing", "prefix sharing")
    assert (found.workload_label or "").startswith("exercise")
    assert (row(pair(bench, shared)).workload_label or "").startswith("kv-bound")


def test_sharing_is_not_said_to_hold_as_many_where_the_pool_was_never_full(tmp_path: Path) -> None:
    run = unpacked("prefix_sharing", tmp_path)
    bench, trials = store.read_bench(run)
    board = scoreboard([pair(bench, trials)])
    (found,) = board.rows
    # 360 of 499 blocks at the peak: requests waited for their turn, not for room.
    assert found.cells["capacity"].value is None
    assert found.standing == "unaffected by construction"
    (text,) = board.recommendation
    assert "capacity not tested (pool not full)" in text
    assert "40, concurrency 40, 1000 shared, answers unaffected by construction" in text


@pytest.mark.parametrize(
    ("scenario", "variant", "length"),
    [("sliding_window", "window_512", "4,096"), ("token_eviction", "sinks_and_256", "2,304")],
)
def test_where_layers_free_blocks_a_ratio_counts_requests(
    tmp_path: Path, scenario: str, variant: str, length: str
) -> None:
    run = unpacked(scenario, tmp_path)
    bench, trials = store.read_bench(run)
    found = row((bench, analyse(bench, trials, store.read_quality(run))), variant=variant)
    assert found.cells["memory"].note == f"bytes per request of {length} tokens"
    assert found.cells["capacity"].note == f"requests of {length} tokens that fit"


def test_perplexity_is_that_of_the_texts_which_are_the_same_for_every_side(tmp_path: Path) -> None:
    run = unpacked("fp8_vs_fp16", tmp_path)
    bench, trials = store.read_bench(run)
    analysis = analyse(bench, trials, store.read_quality(run))
    quality = analysis.quality
    assert quality is not None
    told = quality.of("fp8")
    assert told is not None
    assert told.on_context is not None
    assert row((bench, analysis)).cells["quality"].value == told.on_context.perplexity_ratio


def test_quality_that_was_not_asked_for_is_not_measured_and_never_a_one() -> None:
    cell = row(pair(*fp8())).cells["quality"]
    assert (cell.stamp, cell.value) == ("not measured", None)


def test_a_failed_variant_has_no_figure_and_keeps_its_reason() -> None:
    bench, trials = fp8()
    broken = [
        records.failed(t, "CUDA out of memory", keep=0) if t.run.trial.variant == "fp8" else t
        for t in trials
    ]
    cells = row(pair(bench, broken)).cells
    assert {cells[m].stamp for m in METRICS} == {"failed"}
    assert {cells[m].value for m in METRICS} == {None}
    assert "CUDA out of memory" in (cells["throughput"].note or "")


def test_a_failed_baseline_leaves_nothing_to_compare_with() -> None:
    bench, trials = fp8()
    broken = [
        records.failed(t, "killed", keep=0) if t.run.trial.variant == "fp16" else t for t in trials
    ]
    cells = row(pair(bench, broken)).cells
    assert {cells[m].stamp for m in METRICS} == {"failed"}
    assert (cells["memory"].note or "").startswith("fp16: ")


def test_a_skipped_variant_is_skipped_with_the_engines_reason() -> None:
    bench, trials = fp8()
    bench = replace(bench, skipped={"fp8": "the CPU backend lists auto"})
    skipped = [
        records.skipped(t, "the CPU backend lists auto") if t.run.trial.variant == "fp8" else t
        for t in trials
    ]
    cells = row(pair(bench, skipped)).cells
    assert {(cells[m].stamp, cells[m].note) for m in ("throughput", "ttft", "quality")} == {
        ("skipped", "the CPU backend lists auto")
    }


def test_a_skipped_layout_has_its_memory_and_capacity_by_theory_and_nothing_else() -> None:
    bench, trials = fp8()
    bench = replace(
        bench, skipped={"fp8": "the CPU backend lists auto"}, kv_budget_bytes=117_964_800
    )
    skipped = [
        records.skipped(t, "the CPU backend lists auto") if t.run.trial.variant == "fp8" else t
        for t in trials
    ]
    found = row(pair(bench, skipped))
    # 23,040 and 11,520 bytes per token, in the same bytes.
    for metric in ("memory", "capacity"):
        cell = found.cells[metric]
        assert (cell.stamp, cell.value, cell.shown) == ("modelled", pytest.approx(2.0), None)
        assert cell.note == "skipped here: the CPU backend lists auto"
    assert {found.cells[m].stamp for m in ("throughput", "ttft", "quality")} == {"skipped"}
    # What nobody saw is no gain.
    assert recommendation([found]) == ("no strategy of these runs shows a gain",)


def test_a_variant_that_was_never_run_is_not_measured() -> None:
    bench, trials = fp8()
    bench = variants(bench, {**bench.scenario["variants"], "int4": {"flags": {}}})
    cells = row(pair(bench, trials), variant="int4").cells
    assert {cells[m].stamp for m in METRICS} == {"not measured"}


def test_a_ratio_to_an_emulated_side_is_emulated_whichever_side_it_is() -> None:
    bench, trials = fp8()
    for side in ("fp16", "fp8"):
        emulated = [
            replace(t, run=replace(t.run, trial=replace(t.run.trial, stamp="emulated")))
            if t.run.trial.variant == side
            else t
            for t in trials
        ]
        cells = row(pair(bench, emulated)).cells
        known = {cells[m].stamp for m in METRICS if cells[m].value is not None}
        assert known == {"emulated"}


def test_offloading_frees_no_pool_and_says_so() -> None:
    bench, trials = fp8()
    flags = {"fp16": {}, "fp8": {"flags": {"kv_offloading_size": 1}}}
    cells = row(pair(variants(bench, flags), trials)).cells
    assert cells["memory"].value is None
    assert "host memory" in (cells["memory"].note or "")
    assert cells["throughput"].value is not None


def test_random_weights_have_no_quality_and_ask_for_a_model_trained_so() -> None:
    bench, trials = fp8()
    reshaped = {"load_format": "dummy", "hf_overrides": {"sliding_window": 256}}
    board = scoreboard(
        [pair(variants(bench, {"fp16": {}, "fp8": {"flags": reshaped}}), trials)],
    )
    cell = board.rows[0].cells["quality"]
    assert (cell.stamp, cell.note, cell.standing) == ("not measured", *["random weights"] * 2)
    assert board.recommendation[0].endswith("it takes a model trained so")


def test_random_weights_in_the_models_own_shape_are_no_excuse_for_its_text() -> None:
    bench, trials = fp8()
    flags = {"fp16": {}, "fp8": {"flags": {"load_format": "dummy", "kv_cache_dtype": "fp8"}}}
    found = row(pair(variants(bench, flags), trials)).cells["quality"]
    assert found.note == "answers were not asked for in this run"


def test_a_run_that_is_not_finished_is_cautioned_of() -> None:
    bench, trials = fp8()
    board = scoreboard([pair(replace(bench, status="interrupted"), trials)])
    assert f"run {bench.run_id} is not finished" in board.cautions


def test_the_reference_engine_keeps_its_own_rows_and_enters_no_recommendation() -> None:
    trials = [
        *reference.trials("no_cache", without_cache, NONE),
        *reference.trials("cache", with_cache, GROWING),
    ]
    bench, _ = records.bench(1)
    bench = replace(
        bench,
        scenario={
            "engine": "reference",
            "variants": {"no_cache": {"flags": NONE}, "cache": {"flags": GROWING}},
        },
        trial_ids=tuple(t.run.trial.trial_id for t in trials),
    )
    board = scoreboard([pair(bench, trials)])
    (found,) = board.rows
    assert (found.engine, found.strategy) == ("reference", "growing cache instead of none")
    assert found.cells["memory"].note == "the reference engine has no pool"
    assert board.recommendation == ("no strategy of these runs shows a gain",)


def test_runs_of_unlike_machines_are_refused_with_the_difference_named() -> None:
    bench, trials = fp8()
    other = replace(bench, run_id="other", environment=records.GPU_MACHINE)
    with pytest.raises(InputError, match=r"the profile is cpu in .* and cuda in other"):
        scoreboard([pair(bench, trials), pair(other, trials)])
    with pytest.raises(InputError, match="at least one run"):
        scoreboard([])


def test_runs_of_unlike_models_share_a_table_with_a_caution() -> None:
    bench, trials = fp8()
    other = replace(bench, run_id="other", scenario={**bench.scenario, "model": "another"})
    board = scoreboard([pair(bench, trials), pair(other, trials)])
    assert any("different models" in text for text in board.cautions)
    assert len(board.rows) == 2


def test_runs_of_unlike_engines_are_told_by_what_their_servers_said() -> None:
    bench, trials = fp8()

    def served(version: str | None) -> list[TrialRecord]:
        facts = [replace(t.run.server, engine_version=version) for t in trials if t.run.server]
        return [
            replace(t, run=replace(t.run, server=f)) for t, f in zip(trials, facts, strict=True)
        ]

    def cautions(version: str | None) -> list[str]:
        board = scoreboard([pair(bench, served("0.32.0")), pair(bench, served(version))])
        return [text for text in board.cautions if "engines" in text]

    assert cautions("0.33.0") == ["the runs were taken with different engines (0.32.0, 0.33.0)"]
    # The machine that the client runs on has its own vLLM; an unknown version differs from none.
    assert cautions("0.32.0") == cautions(None) == []


def test_broken_text_without_a_perplexity_is_broken_all_the_same() -> None:
    bench, analysis = pair(*fp8())
    held = VariantQuality(
        variant="fp8",
        kind="variant",
        status="sealed",
        reason=None,
        launches=(1,),
        concurrency=1,
        wall_s=None,
        errors=0,
        on_answers=None,
        on_context=None,
        by_position=(),
        trend="unknown",
        free=None,
        retrieval=None,
        gate=SanityGate(False, ("half of the answers are empty",), 0.5, None),
        standing="broken",
    )
    quality = QualityAnalysis(
        baseline="fp16",
        prompts=2,
        tasks={},
        context_tokens=(),
        reference_status="sealed",
        reference_reason=None,
        baseline_retrieval=None,
        baseline_gate=None,
        variants=(held,),
        judges=(),
        left_out=(),
        methods={},
    )
    board = scoreboard([(bench, replace(analysis, quality=quality))])
    assert board.rows[0].cells["quality"].value is None
    assert board.recommendation == ("not KV dtype fp8: its text fails the gate",)


def test_a_gain_without_an_interval_is_an_observation() -> None:
    board = scoreboard([pair(*fp8(1))])
    (text,) = board.recommendation
    assert text.startswith("KV dtype fp8 (flags): 2.00× the capacity, throughput ")
    assert "observed without an interval" in text
    assert text.endswith("measure it before using it")


def test_a_recommended_gain_carries_its_interval_wherever_it_has_one() -> None:
    good = row(pair(*fp8()))
    wide = replace(good.cells["throughput"], value=5.74, low=1.18, high=27.91, shown=True)
    (text,) = recommendation([replace(good, cells={**good.cells, "throughput": wide})])
    assert "2.00× the capacity, 5.74× [1.18, 27.91] the throughput" in text
    even = replace(good.cells["throughput"], value=0.85, low=0.57, high=1.28, shown=False)
    (text,) = recommendation([replace(good, cells={**good.cells, "throughput": even})])
    assert "no difference in throughput shown (0.85× [0.57, 1.28])" in text


def test_broken_answers_are_never_recommended_and_less_effort_comes_first() -> None:
    good = row(pair(*fp8()))
    worse = replace(
        good,
        strategy="broken one",
        cells={**good.cells, "quality": replace(good.cells["quality"], standing="broken")},
    )
    plugin = replace(good, strategy="eviction", effort="plugin")
    told = recommendation([plugin, worse, good])
    assert [text.split(" (")[0] for text in told[:2]] == ["KV dtype fp8", "eviction"]
    assert told[2] == "not broken one: its text fails the gate"
