from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.results import Cell
from harness.analysis.run_comparison import RunComparison, compare_runs, label_of
from harness.errors import InputError
from harness.record import TrialRecord
from tests import records
from tests.analysis import runs
from tests.analysis.runs import Stored

A = runs.run()
B = runs.again(A)


def cell(
    run_comparison: RunComparison, metric: str, label: str = "B", variant: str = "fp16"
) -> Cell:
    load = next(load for load in run_comparison.loads if load.variant == variant)
    row = load.comparison.row(metric) if load.comparison is not None else None
    found = row.cell(label) if row is not None else None
    assert found is not None
    return found


def only(stored: Stored, repeats: set[int]) -> Stored:
    return runs.with_trials(stored, lambda t: t if t.run.trial.repeat in repeats else None)


def test_a_run_against_itself_is_paired_and_its_ratio_is_one_without_width() -> None:
    found = cell(compare_runs([A, A]), "output_throughput")
    assert found.interval is not None
    assert (found.ratio, found.interval.low, found.interval.high) == (1.0, 1.0, 1.0)
    assert "paired by repeat" in found.interval.method
    assert found.effect == "no difference shown"


def test_a_copy_is_known_by_its_launches_and_what_was_changed_in_it_is_all_that_shows() -> None:
    copy = runs.all_slower((replace(A[0], run_id="copy"), A[1]), 1 / 0.9)
    found = cell(compare_runs([A, copy]), "output_throughput")
    assert found.interval is not None
    assert found.ratio == pytest.approx(0.9)
    assert found.interval.relative_width == pytest.approx(0.0, abs=1e-9)


def test_runs_taken_apart_are_unpaired() -> None:
    run_comparison = compare_runs([A, B])
    assert {load.estimates["B"] for load in run_comparison.loads} == {"unpaired"}
    found = cell(run_comparison, "output_throughput")
    assert found.interval is not None
    # The same figures: the ratio is 1, but their spread is that of both runs.
    assert found.ratio == pytest.approx(1.0)
    assert found.interval.low is not None
    assert found.interval.low < 1.0
    assert "unpaired" in found.interval.method


def test_records_without_a_clock_are_paired_only_if_they_are_equal() -> None:
    clockless = runs.with_trials(
        A, lambda t: runs.with_run(t, lambda run: replace(run, zero_unix_s=None))
    )
    assert compare_runs([clockless, clockless]).loads[0].estimates["B"] == "paired"
    changed = runs.all_slower(clockless, 1.1)
    assert compare_runs([clockless, changed]).loads[0].estimates["B"] == "unpaired"


def test_a_slower_run_is_shown_as_worse_and_a_faster_one_as_better() -> None:
    worse = cell(compare_runs([A, runs.all_slower(B, 1.25)]), "output_throughput")
    assert (worse.effect, worse.improves) == ("lower", False)
    assert worse.ratio == pytest.approx(0.8)
    better = cell(compare_runs([A, runs.all_slower(B, 0.8)]), "output_throughput")
    assert (better.effect, better.improves) == ("higher", True)


def test_every_later_run_is_held_against_the_first() -> None:
    run_comparison = compare_runs(
        [A, runs.all_slower(B, 2.0), runs.all_slower(runs.again(A, "c"), 4.0)]
    )
    assert [run.label for run in run_comparison.runs] == ["A", "B", "C"]
    assert cell(run_comparison, "output_throughput", "B").ratio == pytest.approx(0.5)
    assert cell(run_comparison, "output_throughput", "C").ratio == pytest.approx(0.25)


def test_labels_go_on_after_the_alphabet() -> None:
    assert [label_of(place) for place in (0, 25, 26)] == ["A", "Z", "R27"]


def test_unlike_runs_are_refused_with_every_key_and_each_run_s_value() -> None:
    other = runs.on_machine(runs.in_scenario(B, model="another/model"), profile="cuda", cpu="x")
    with pytest.raises(InputError, match="unlike: their profile and model differ") as caught:
        compare_runs([A, other])
    message = str(caught.value)
    assert "20300103-000000-later: another/model" in message
    assert "no reason to refuse: cpu" in message
    assert "--force-unlike" in message
    assert caught.value.exit_code == 2


def test_unlike_runs_are_compared_if_it_is_insisted_and_the_page_must_say_so() -> None:
    other = runs.in_scenario(B, model="another/model")
    run_comparison = compare_runs([A, other], force_unlike=True)
    assert run_comparison.forced == ("model",)
    assert run_comparison.cautions[0].code == "unlike"
    assert "asked for: their model differs;" in run_comparison.cautions[0].text
    loads = runs.in_scenario(B, workloads=[{**runs.SMALL, "warmup_requests": 99}])
    with pytest.raises(InputError, match="their workloads differ, so"):
        compare_runs([A, loads])


def test_of_two_profiles_what_is_granted_is_compared_and_every_figure_of_a_load_withheld() -> None:
    other = runs.on_machine(runs.all_slower(B, 1 / 20), profile="cuda")
    run_comparison = compare_runs([A, other], force_unlike=True)
    assert run_comparison.cautions[0].code == "profiles_differ"
    for load in run_comparison.loads:
        assert load.comparison is not None
        for row in load.comparison.rows:
            found = row.cell("B")
            assert found is not None
            if row.metric.startswith("kv."):
                assert found.verdict != "invalid"
            else:
                told = (found.verdict, found.effect, found.improves)
                assert told == ("invalid", "unknown", None), row.metric
                codes = {verdict.code: verdict.reason for verdict in found.verdicts}
                assert "cuda profile here, cpu in run A" in codes["profiles_differ"]
    assert cell(run_comparison, "kv.kv_bytes_per_token").effect == "no difference shown"


def test_what_only_one_run_has_is_listed_and_not_compared() -> None:
    other = runs.run(3, ("fp16", "int8"))
    run_comparison = compare_runs([A, runs.again(other)])
    by_variant = {load.variant: load for load in run_comparison.loads}
    assert by_variant["fp16"].comparison is not None
    assert by_variant["fp8"].comparison is None
    assert not by_variant["fp8"].sides[1].planned
    assert not by_variant["int8"].sides[0].planned
    assert next(c for c in run_comparison.cautions if c.code == "not_in_both").text.count("·") >= 2


def test_runs_with_nothing_in_common_are_an_error_even_if_insisted() -> None:
    loads = [runs.TIGHT]
    other = records.bench(3, workloads=(runs.TIGHT,))
    assert other[0].scenario["workloads"] == loads
    with pytest.raises(InputError, match="nothing to compare"):
        compare_runs([A, other], force_unlike=True)


def test_one_run_is_no_comparison() -> None:
    with pytest.raises(InputError, match="at least two runs"):
        compare_runs([A])


def test_trials_that_failed_never_ended_or_never_began_are_counted_with_their_reasons() -> None:
    def ended(trial: TrialRecord) -> TrialRecord | None:
        if trial.run.trial.variant != "fp8":
            return trial
        return {
            0: records.failed(trial, "out of memory"),
            1: records.half_written(trial),
            2: None,
        }[trial.run.trial.repeat]

    run_comparison = compare_runs([A, runs.with_trials(B, ended)])
    side = next(load for load in run_comparison.loads if load.variant == "fp8").sides[1]
    assert side.counts == {"failed": 1, "started": 1, "never begun": 1}
    assert side.lost == 3
    assert side.reasons == ("out of memory",)
    assert cell(run_comparison, "output_throughput", variant="fp8").value is None
    # What the engine granted was granted, though the load failed.
    assert cell(run_comparison, "kv.kv_cache_tokens", variant="fp8").value == 80 * 128
    caution = next(c for c in run_comparison.cautions if c.code == "run_not_whole")
    assert "1 failed, 1 not finished, 1 never begun of 6" in caution.text


def test_a_variant_that_was_skipped_keeps_its_reason() -> None:
    bench, trials = runs.with_trials(
        B, lambda t: records.skipped(t, "no such dtype") if t.run.trial.variant == "fp8" else t
    )
    bench = replace(bench, skipped={"fp8": "no such dtype"})
    side = compare_runs([A, (bench, trials)]).loads[1].sides[1]
    assert side.skipped
    assert side.lost == 0
    assert side.reasons == ("no such dtype",)


def test_below_three_repeats_a_ratio_has_no_interval() -> None:
    found = cell(compare_runs([A, only(B, {0})]), "output_throughput")
    assert found.interval is not None
    assert found.interval.low is None
    assert found.effect == "no interval"


def test_a_measured_figure_is_not_set_beside_an_emulated_one() -> None:
    def emulated(trial: TrialRecord) -> TrialRecord:
        facts = replace(trial.run.trial, stamp="emulated")
        return runs.with_run(trial, lambda run: replace(run, trial=facts))

    found = cell(compare_runs([A, runs.with_trials(B, emulated)]), "output_throughput")
    assert found.verdict == "invalid"
    assert found.effect == "unknown"
    assert any("emulated here, measured in run A" in v.reason for v in found.verdicts)


def test_goodput_under_other_objectives_is_no_figure_to_compare() -> None:
    other = runs.in_scenario(B, slo={"ttft_s": 1.0, "tpot_s": 0.1})
    run_comparison = compare_runs([A, other])
    assert cell(run_comparison, "goodput").verdict == "invalid"
    assert cell(run_comparison, "output_throughput").verdict == "valid"


def test_what_was_said_in_view_of_the_own_run_s_baseline_is_left_out() -> None:
    def other_backend(trial: TrialRecord) -> TrialRecord:
        server = trial.run.server
        if server is None or trial.run.trial.variant != "fp8":
            return trial
        server = replace(server, attention_backend="OTHER")
        return runs.with_run(trial, lambda run: replace(run, server=server))

    one, two = (runs.with_trials(stored, other_backend) for stored in (A, B))
    run_comparison = compare_runs([one, two])
    within = run_comparison.runs[0].analysis.comparisons[0].row("output_throughput")
    assert within is not None
    assert [v.code for v in within.cells[1].verdicts] == ["attention_backend_differs"]
    assert cell(run_comparison, "output_throughput", variant="fp8").verdicts == ()


def test_a_run_against_itself_is_said_to_be_one() -> None:
    assert "same_launches" in {c.code for c in compare_runs([A, A]).cautions}
    assert "same_launches" not in {c.code for c in compare_runs([A, B]).cautions}
