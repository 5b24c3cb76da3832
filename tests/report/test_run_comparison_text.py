from __future__ import annotations

from dataclasses import replace

from harness.analysis.gate import decide, parse_rule
from harness.analysis.run_comparison import compare_runs
from harness.record import TrialRecord
from harness.report.run_comparison_text import RunComparisonText, change_text, run_comparison_text
from tests import records
from tests.analysis import runs
from tests.analysis.runs import Stored

A = runs.run()
B = runs.again(A)


def told(*stored: Stored, rules: tuple[str, ...] = (), force: bool = False) -> RunComparisonText:
    run_comparison = compare_runs(stored, force_unlike=force)
    gate = decide(run_comparison, [parse_rule(rule) for rule in rules]) if rules else None
    return run_comparison_text(run_comparison, gate)


def test_the_opening_counts_what_throughput_shows_and_never_more() -> None:
    text = told(A, B)
    assert text.lead == (
        "Run B against run A: output throughput is compared in 2 pairs of variant and load: "
        "no difference shown in 2."
    )
    assert text.points == (
        "No difference is shown in bytes per token, capacity, throughput, TTFT or TPOT.",
    )
    assert (text.gate, text.gate_answer) == (None, None)


def test_shown_effects_are_told_with_their_intervals() -> None:
    text = told(A, runs.all_slower(B, 2.0))
    assert "lower in 2" in text.lead
    first = text.points[0]
    assert first.startswith(
        "B, fp16 · exercise: 512+8 tokens × 8, concurrency 4: Output throughput"
    )
    assert "0.50× [" in first
    assert first.endswith("], worse")


def test_a_single_replicate_is_told_as_without_an_interval() -> None:
    text = told(runs.run(1), runs.again(runs.run(1)))
    assert "no interval in 2" in text.lead
    (point,) = text.points
    assert point == (
        "Nothing can be told of throughput, TTFT and TPOT: run A has 1 and run B has 1 of the 3 "
        "repeats that it takes."
    )


def test_a_side_that_has_its_repeats_is_not_blamed() -> None:
    (point,) = told(A, runs.again(runs.run(2))).points
    assert "TPOT: run B has 2 of the 3 repeats that it takes." in point


def test_what_is_granted_is_told_once_per_variant_whatever_the_loads() -> None:
    one = records.bench(1, workloads=(runs.SMALL, runs.TIGHT))

    def larger(trial: TrialRecord) -> TrialRecord:
        blocks = 2 * (80 if trial.run.trial.variant == "fp8" else 40)
        server = records.server(trial.run.trial.variant, blocks=blocks)
        return runs.with_run(trial, lambda run: replace(run, server=server))

    text = told(one, runs.with_trials(runs.again(one), larger))
    assert sum("KV capacity 2.00×, better" in point for point in text.points) == 2


def test_differences_are_written_in_their_units_and_lists_without_what_all_hold() -> None:
    one = records.bench(1, workloads=(runs.SMALL, runs.TIGHT))
    other = runs.on_machine(
        runs.again(runs.run(1)), memory_bytes=16 << 30, git_revision="f" * 40, git_dirty=None
    )
    text = told(one, other, force=True)
    found = {line.key: line for line in text.differences}
    assert found["memory_bytes"].values == ("8.00 GiB", "16.00 GiB")
    assert found["git_revision"].values == ("0123456789ab", "ffffffffffff")
    assert found["git_dirty"].values == ("no", "—")
    assert found["workloads"].refused
    assert found["workloads"].values == (
        "kv-bound: 512+16 tokens × 10, concurrency 12 (2 warm-ups)",
        "nothing else",
    )


def test_the_gate_s_checks_come_with_the_gravest_first() -> None:
    mixed = runs.with_trials(
        runs.all_slower(B, 2.0),
        lambda t: records.failed(t, "it\ndied") if t.run.trial.variant == "fp16" else t,
    )
    text = told(A, mixed, rules=("output_throughput<-5%", "kv_bytes_per_token>+0%"))
    assert text.gate == "fail"
    assert text.gate_answer == "The gate answers fail: of 4 checks 1 fail, 1 inconclusive, 2 pass."
    assert [check.verdict for check in text.checks] == ["fail", "inconclusive", "pass", "pass"]
    assert text.checks[1].reason == "run B: 3 failed (it died)"
    assert text.checks[0].replicates == "3 / 3"
    assert text.checks[2].replicates == "exact"


def test_a_change_is_written_with_its_interval_or_as_one_figure_where_there_is_no_spread() -> None:
    slower = decide(
        compare_runs([A, runs.all_slower(A, 2.0)]), [parse_rule("output_throughput<-5%")]
    )
    assert change_text(slower.checks[0]) == "-50.0 %"
    apart = decide(
        compare_runs([A, runs.all_slower(B, 2.0)]), [parse_rule("output_throughput<-5%")]
    )
    assert change_text(apart.checks[0]).startswith("-50.0 % [-5")


def test_how_every_run_s_trials_ended_stands_with_the_pair() -> None:
    half = runs.with_trials(
        B, lambda t: records.half_written(t) if t.run.trial.repeat == 0 else None
    )
    text = told(A, half)
    assert text.pairs[0].ends == ("A: 3 measured", "B: 1 not finished, 2 never begun")
    assert text.runs[1].trials == "6 not finished"
    gone = told(A, runs.again(runs.run(3, ("fp16",))))
    assert gone.pairs[1].ends == ("A: 3 measured", "B: not part of this run")
    assert gone.pairs[1].table is None
    assert gone.pairs[1].method.startswith("not compared")
