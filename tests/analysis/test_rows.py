from dataclasses import replace

import pytest

from harness.analysis.compare import analyse
from harness.analysis.results import Verdict
from harness.analysis.rows import METRICS, comparison
from tests.records import bench

BENCH = analyse(*bench())


def with_throughput(by_variant):
    """Trials whose output throughput is as given, by variant and repeat."""
    made = []
    for trial in BENCH.trials:
        if trial.workload["name"] == "exercise" and trial.variant in by_variant:
            value = by_variant[trial.variant][trial.repeat]
            summary = replace(trial.summary, output_throughput=value)
            made.append(replace(trial, summary=summary, verdicts=()))
    return made


def row(by_variant, **changes):
    trials = [replace(t, **changes.get(t.variant, {})) for t in with_throughput(by_variant)]
    return comparison(trials, "fp16").row("output_throughput")


def test_the_value_is_the_median_and_all_replicates_are_kept():
    cell = row({"fp16": [100.0, 110.0, 102.0], "fp8": [1.0, 1.0, 1.0]}).cell("fp16")
    assert cell.value == 102.0
    assert cell.replicates == ((0, 100.0), (1, 110.0), (2, 102.0))
    assert (cell.ratio, cell.interval, cell.effect) == (None, None, None)


def test_a_gain_outside_the_noise_is_shown_as_better():
    made = row({"fp16": [100.0, 101.0, 102.0], "fp8": [150.0, 151.0, 152.0]})
    assert made.noise.ratio == pytest.approx(1.02)
    cell = made.cell("fp8")
    assert (cell.effect, cell.improves) == ("higher", True)
    assert cell.ratio == pytest.approx(1.495, abs=1e-3)


def test_a_loss_of_throughput_is_shown_as_worse():
    cell = row({"fp16": [100.0, 101.0, 102.0], "fp8": [50.0, 51.0, 52.0]}).cell("fp8")
    assert (cell.effect, cell.improves) == ("lower", False)


def test_a_difference_inside_the_noise_is_no_difference_shown():
    cell = row({"fp16": [100.0, 105.0, 102.0], "fp8": [103.0, 108.2, 105.1]}).cell("fp8")
    assert cell.interval.low > 1.0
    assert (cell.effect, cell.improves) == ("no difference shown", None)


def test_an_unknown_value_is_left_out_and_never_counts_as_zero():
    cell = row({"fp16": [100.0, None, 102.0], "fp8": [150.0, 151.0, 152.0]}).cell("fp16")
    assert cell.value == 101.0
    assert [repeat for repeat, _ in cell.replicates] == [0, 2]


def test_no_effect_is_claimed_from_an_invalid_figure():
    warm = Verdict("output_throughput", "invalid", "prefix_cache_hits", "warm")
    values = {"fp16": [100.0, 101.0, 102.0], "fp8": [150.0, 151.0, 152.0]}
    for side in values:
        cell = row(values, **{side: {"verdicts": (warm,)}}).cell("fp8")
        assert (cell.effect, cell.improves) == ("unknown", None)
        assert cell.value == 151.0


def test_a_suspect_figure_stays_a_figure():
    late = Verdict("*", "suspect", "device_not_clean", "busy")
    values = {"fp16": [100.0, 101.0, 102.0], "fp8": [150.0, 151.0, 152.0]}
    cell = row(values, fp8={"verdicts": (late,)}).cell("fp8")
    assert (cell.value, cell.verdict, cell.effect) == (151.0, "suspect", "higher")


def test_a_granted_figure_needs_no_interval():
    capacity = BENCH.comparisons[0].row("kv.kv_cache_tokens").cell("fp8")
    assert (capacity.value, capacity.ratio, capacity.interval) == (10240, pytest.approx(2.0), None)
    assert (capacity.effect, capacity.improves, capacity.theory) == ("higher", True, 10240)
    once = analyse(*bench(1)).comparisons[0]
    assert once.row("kv.kv_cache_tokens").cell("fp8").effect == "higher"
    assert once.row("output_throughput").cell("fp8").effect == "no interval"


def test_the_pool_of_a_trial_whose_load_failed_was_granted_all_the_same():
    trials = [replace(t, status="failed") for t in with_throughput({"fp16": [1.0] * 3})]
    made = comparison(trials, "fp16")
    assert made.row("kv.kv_cache_tokens").cell("fp16").value == 5120
    assert made.row("output_throughput").cell("fp16").value is None


def test_verdicts_reach_the_figures_of_the_steady_window_too():
    warm = Verdict("output_throughput", "suspect", "preemptions", "p")
    trials = [replace(t, verdicts=(warm,)) for t in with_throughput({"fp16": [1.0] * 3})]
    made = comparison(trials, "fp16")
    assert made.row("steady.output_throughput").cell("fp16").verdict == "suspect"
    assert made.row("ttft_s.p50").cell("fp16").verdict == "valid"


def test_preemptions_that_vanish_are_fewer_though_zero_has_no_ratio():
    cell = BENCH.comparisons[1].row("preemptions").cell("fp8")
    assert (cell.value, cell.ratio, cell.effect, cell.improves) == (0.0, None, "lower", True)


def test_every_metric_has_its_own_name():
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))


def test_kv_in_use_is_a_whole_number_of_blocks():
    # 7 of 80 usable blocks of 128; as a float the gauge is a trace more: 7 · 128 = 896 tokens.
    gauge = 1.0 - 73 / 80
    assert gauge * 80 * 128 != 896
    made = []
    for trial in BENCH.trials:
        pool = replace(trial.granted, num_blocks=81, block_size=128)
        seen = replace(trial.summary, kv_usage_peak=gauge)
        if trial.workload["name"] == "exercise":
            made.append(replace(trial, summary=seen, granted=pool))
    assert comparison(made, "fp16").cell("kv_in_use_peak_tokens", "fp16").value == 896
