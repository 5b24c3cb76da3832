from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest

from harness.analysis.gate import NAMES, Check, GateResult, decide, parse_rule
from harness.analysis.run_comparison import RunComparison, compare_runs
from harness.errors import InputError
from harness.record import GrantedKv, TrialRecord
from tests import records
from tests.analysis import runs
from tests.analysis.runs import Stored

A = runs.run()
B = runs.again(A)
SLOWER = "output_throughput<-5%"
MORE_BYTES = "kv_bytes_per_token>+0%"


def gate(stored: Sequence[Stored], *rules: str, variant: str | None = None) -> GateResult:
    return decide(
        compare_runs(stored),
        [parse_rule(rule) for rule in rules],
        variants=() if variant is None else (variant,),
    )


def check(stored: Sequence[Stored], rule: str, variant: str = "fp16") -> Check:
    found = gate(stored, rule, variant=variant).checks
    assert len(found) == 1
    return found[0]


def of_fp8(stored: Stored, change: Callable[[TrialRecord], TrialRecord | None]) -> Stored:
    return runs.with_trials(stored, lambda t: change(t) if t.run.trial.variant == "fp8" else t)


def granted(stored: Stored, blocks: int, pool: int, repeats: Sequence[int] = (0, 1, 2)) -> Stored:
    """Every launch of these repeats granted ``blocks`` blocks of 128 tokens from ``pool`` bytes."""
    grant = GrantedKv(
        block_size=128,
        num_gpu_blocks=blocks,
        kv_cache_tokens=blocks * 128,
        kv_cache_memory_bytes=pool,
    )

    def change(trial: TrialRecord) -> TrialRecord:
        if trial.run.server is None or trial.run.trial.repeat not in repeats:
            return trial
        server = replace(trial.run.server, granted=grant)
        return runs.with_run(trial, lambda run: replace(run, server=server))

    return runs.with_trials(stored, change)


# ── what the gate is for ────────────────────────────────────────────────────────────────────


def test_a_planted_loss_of_a_tenth_fails() -> None:
    found = gate([A, runs.all_slower(B, 1 / 0.9)], SLOWER)
    assert (found.verdict, found.exit_code) == ("fail", 1)
    change = found.checks[0].change
    assert change.value == pytest.approx(-0.10)
    assert change.high is not None
    assert change.high < -0.05


def test_a_loss_planted_in_a_copy_of_the_same_records_fails_too() -> None:
    assert gate([A, runs.all_slower(A, 1 / 0.9)], SLOWER).verdict == "fail"


def test_a_run_against_itself_passes_every_rule_of_what_it_measured() -> None:
    found = gate([A, A], SLOWER, "output_throughput>+0%", "ttft_s.p50>+0%", MORE_BYTES)
    assert (found.verdict, found.exit_code) == ("pass", 0)
    assert {check.change.value for check in found.checks} == {0.0}


def test_a_single_replicate_of_a_noisy_figure_is_inconclusive_also_against_itself() -> None:
    one = runs.run(1)
    for other in (one, runs.again(one), runs.all_slower(runs.again(one), 2.0)):
        found = gate([one, other], SLOWER)
        assert (found.verdict, found.exit_code) == ("inconclusive", 3)
        assert "1 of the 3 repeats" in found.checks[0].reason


def test_what_is_granted_decides_with_one_replicate() -> None:
    one = runs.run(1)
    assert gate([one, runs.again(one)], MORE_BYTES).verdict == "pass"
    # 39 blocks from the bytes of 40: each token takes 40/39 of what it took.
    fewer = granted(runs.again(one), 39, records.POOL_BYTES)
    found = check([one, fewer], MORE_BYTES)
    assert found.verdict == "fail"
    assert found.change.value == pytest.approx(40 / 39 - 1)
    assert check([one, fewer], "kv_cache_tokens<-5%").verdict == "pass"
    assert check([one, fewer], "kv_cache_tokens<-2%").verdict == "fail"


def test_noise_that_straddles_the_limit_is_inconclusive() -> None:
    # −5 % on average with a spread of several per cent: the interval holds the limit.
    found = check([A, runs.noisy(B, (1.0, 1 / 0.95, 1 / 0.9))], SLOWER)
    assert found.verdict == "inconclusive"
    assert found.change.low is not None
    assert found.change.high is not None
    assert found.change.low < -0.05 < found.change.high


def test_an_improvement_passes_a_rule_against_losses_and_trips_one_against_changes() -> None:
    faster = runs.all_slower(B, 0.5)
    assert check([A, faster], SLOWER).verdict == "pass"
    assert check([A, faster], "output_throughput>+50%").verdict == "fail"
    assert check([A, faster], "mean_e2el_ms>+0%").verdict == "pass"


def test_a_change_at_the_limit_is_within_it() -> None:
    one = runs.run(1)
    assert check([one, one], "kv_cache_tokens<+0%").verdict == "pass"
    # 38 of 40 blocks are −5 % to the letter.
    at = granted(runs.again(one), 38, records.POOL_BYTES)
    assert check([one, at], "kv_cache_tokens<-5%").verdict == "pass"
    assert check([one, at], "kv_cache_tokens<-4.9%").verdict == "fail"


# ── what can't be seen does not pass ────────────────────────────────────────────────────────


def test_lost_trials_take_a_pass_away_and_leave_a_fail() -> None:
    four = runs.run(4)
    lost = of_fp8(
        runs.again(four),
        lambda t: records.failed(t, "out of memory") if t.run.trial.repeat == 3 else t,
    )
    found = check([four, lost], "output_throughput<-50%", "fp8")
    assert found.verdict == "inconclusive"
    assert "1 in B" in found.reason
    assert (
        check([four, runs.all_slower(lost, 4.0)], "output_throughput<-50%", "fp8").verdict == "fail"
    )
    assert check([four, lost], "output_throughput<-50%", "fp16").verdict == "pass"


def test_a_variant_whose_trials_all_failed_is_inconclusive_with_the_reason() -> None:
    found = check([A, of_fp8(B, lambda t: records.failed(t, "it died"))], SLOWER, "fp8")
    assert (found.verdict, found.replicates) == ("inconclusive", (3, 0))
    assert found.reason == "run B: 3 failed (it died)"


def test_a_half_written_run_is_inconclusive() -> None:
    half = of_fp8(B, lambda t: records.half_written(t) if t.run.trial.repeat == 0 else None)
    found = check([A, half], SLOWER, "fp8")
    assert found.verdict == "inconclusive"
    assert "1 not finished, 2 never begun" in found.reason


def test_an_invalid_figure_is_inconclusive() -> None:
    def short(trial: TrialRecord) -> TrialRecord:
        lost = [replace(r, error="refused", last_chunk_s=None) for r in trial.requests[:6]]
        return replace(trial, requests=(*lost, *trial.requests[6:]))

    found = check([A, of_fp8(B, short)], SLOWER, "fp8")
    assert found.verdict == "inconclusive"
    assert "did not complete" in found.reason
    assert found.reason.startswith("a figure is invalid: B: ")


def test_a_suspect_figure_decides_and_its_doubt_is_told() -> None:
    def damaged(trial: TrialRecord) -> TrialRecord:
        return replace(trial, damaged_lines=2)

    found = check([A, of_fp8(B, damaged)], "output_throughput<-50%", "fp8")
    assert found.verdict == "pass"
    assert found.doubts == ("B: 2 lines of the stored record can't be read",)


def test_a_figure_that_neither_run_knows_is_inconclusive() -> None:
    found = check([A, B], "gpu_used_peak_bytes>+5%")
    assert found.verdict == "inconclusive"
    assert found.reason == "run A does not know it; run B does not know it"


def test_what_was_skipped_on_one_side_is_inconclusive_and_on_both_does_not_count() -> None:
    def skipped(stored: Stored) -> Stored:
        bench, trials = of_fp8(stored, lambda t: records.skipped(t, "no such dtype"))
        return replace(bench, skipped={"fp8": "no such dtype"}), trials

    assert check([A, skipped(B)], SLOWER, "fp8").verdict == "inconclusive"
    both = gate([skipped(A), skipped(A)], SLOWER)
    assert [c.verdict for c in both.checks] == ["pass", "not applicable"]
    assert both.verdict == "pass"
    assert gate([skipped(A), skipped(A)], SLOWER, variant="fp8").verdict == "inconclusive"


def test_a_new_variant_has_not_regressed_and_one_that_is_gone_may_have() -> None:
    more = runs.run(3, ("fp16", "fp8", "int8"))
    assert check([A, runs.again(more)], SLOWER, "int8").verdict == "not applicable"
    found = check([more, B], SLOWER, "int8")
    assert (found.verdict, found.reason) == ("inconclusive", "run B does not have it")


def test_loads_that_are_unlike_and_forced_do_not_count() -> None:
    other = records.bench(3, workloads=(runs.SMALL, runs.TIGHT))
    run_comparison = compare_runs([other, B], force_unlike=True)
    found = decide(run_comparison, [parse_rule("output_throughput<-50%")])
    assert [c.verdict for c in found.checks] == ["pass", "not applicable"] * 2


# ── counts of zero, pools of unlike size ────────────────────────────────────────────────────


def preempting(stored: Stored, counts: Sequence[float]) -> Stored:
    def change(trial: TrialRecord) -> TrialRecord:
        count, samples = counts[trial.run.trial.repeat], trial.engine_samples
        last = replace(samples[-1], preemptions_total=count)
        return replace(trial, engine_samples=(*samples[:-1], last))

    return runs.with_trials(stored, change)


def test_counts_from_zero_to_zero_are_no_change() -> None:
    assert check([A, B], "preemptions>+0%").verdict == "pass"


def test_a_rise_from_zero_is_beyond_every_limit() -> None:
    risen = preempting(B, (2.0, 3.0, 1.0))
    assert check([A, risen], "preemptions>+900%").verdict == "fail"
    assert check([risen, A], "preemptions>+0%").verdict == "pass"
    assert check([risen, A], "preemptions<-99%").verdict == "fail"


def test_counts_that_are_zero_now_and_then_are_inconclusive() -> None:
    found = check([A, preempting(B, (0.0, 3.0, 0.0))], "preemptions>+0%")
    assert found.verdict == "inconclusive"
    assert "a change from zero" in found.reason


def test_pools_of_unlike_size_tell_bytes_per_token_to_one_block() -> None:
    # 40 blocks from 40.5 blocks' bytes look like 1.25 % more per token, and may be none.
    larger = granted(runs.again(runs.run(1)), 40, int(records.POOL_BYTES * 40.5 / 40))
    found = check([runs.run(1), larger], MORE_BYTES)
    assert found.verdict == "inconclusive"
    assert check([runs.run(1), larger], "kv_bytes_per_token>+5%").verdict == "pass"


def test_launches_that_were_granted_unlike_amounts_decide_by_all_of_them() -> None:
    varied = granted(B, 36, records.POOL_BYTES, repeats=(2,))
    found = check([A, varied], "kv_cache_tokens<-5%")
    assert found.verdict == "inconclusive"
    assert found.change.low == pytest.approx(-0.10)
    assert found.change.high == pytest.approx(0.0)


# ── which pairs, which words ────────────────────────────────────────────────────────────────


@cache
def _two_loads() -> RunComparison:
    one = records.bench(3, workloads=(runs.SMALL, runs.TIGHT))
    return compare_runs([one, runs.again(one), runs.all_slower(runs.again(one, "c"), 2.0)])


def test_a_rule_is_put_to_every_variant_load_and_later_run_and_names_each() -> None:
    found = decide(_two_loads(), [parse_rule(SLOWER), parse_rule(MORE_BYTES)])
    assert len(found.checks) == 2 * 2 * 2 * 2
    named = {(c.rule.text, c.variant, c.workload_label, c.run) for c in found.checks}
    assert len(named) == 16
    assert {c.run for c in found.checks if c.verdict == "fail"} == {"C"}
    assert found.verdict == "fail"


def test_a_gate_can_be_narrowed_to_variants_and_loads() -> None:
    rules = [parse_rule(SLOWER)]
    found = decide(_two_loads(), rules, variants=["fp8"], loads=["kv-bound"])
    assert {(c.variant, c.workload_label[:8]) for c in found.checks} == {("fp8", "kv-bound")}
    label = _two_loads().loads[0].workload_label
    assert len(decide(_two_loads(), rules, loads=[label]).checks) == 4


@pytest.mark.parametrize(("variants", "loads"), [(["fp9"], []), ([], ["kv-bond"])])
def test_a_narrowing_that_no_run_knows_is_an_error_that_lists_what_there_is(
    variants: list[str], loads: list[str]
) -> None:
    with pytest.raises(InputError, match="did you mean") as caught:
        decide(_two_loads(), [parse_rule(SLOWER)], variants=variants, loads=loads)
    assert caught.value.legal


def test_the_answer_counts_its_checks_in_words_that_agree() -> None:
    two = decide(compare_runs([A, A]), [parse_rule(SLOWER)])
    one = decide(compare_runs([A, A]), [parse_rule(SLOWER)], variants=["fp8"])
    assert (two.why, one.why) == ("pass: of 2 checks 2 pass", "pass: of 1 check 1 pass")


def test_one_inconclusive_check_keeps_the_gate_from_passing_and_one_fail_fails_it() -> None:
    mixed = of_fp8(B, lambda t: records.failed(t, "x"))
    found = gate([A, mixed], "output_throughput<-50%")
    assert [c.verdict for c in found.checks] == ["pass", "inconclusive"]
    assert found.why == "inconclusive: of 2 checks 1 inconclusive, 1 pass"
    assert gate([A, runs.all_slower(mixed, 4.0)], "output_throughput<-50%").verdict == "fail"


@pytest.mark.parametrize(
    ("text", "metric", "below", "limit"),
    [
        ("output_throughput<-5%", "output_throughput", True, -0.05),
        (" ttft_s.p50 > +10 % ", "ttft_s.p50", False, 0.10),
        ("kv_bytes_per_token>+0%", "kv.kv_bytes_per_token", False, 0.0),
        ("kv.kv_cache_tokens<-0.5%", "kv.kv_cache_tokens", True, -0.005),
        ("median_ttft_ms>5%", "ttft_s.p50", False, 0.05),
        ("p99_tpot_ms>5%", "tpot_s.p99", False, 0.05),
        ("mean_e2el_ms>5%", "e2el_s.mean", False, 0.05),
        ("request_goodput<−5 %", "goodput", True, -0.05),
        ("steady.output_throughput<-5%", "steady.output_throughput", True, -0.05),
    ],
)
def test_a_rule_is_read_in_our_names_and_in_those_of_vllm_bench_serve(
    text: str, metric: str, below: bool, limit: float
) -> None:
    rule = parse_rule(text)
    assert (rule.metric, rule.below) == (metric, below)
    assert rule.limit == pytest.approx(limit)


@pytest.mark.parametrize(
    "text",
    ["", "output_throughput", "output_throughput<-5", "output_throughput=-5%", "<-5%", "a<b%",
     "output_throughput<-5%>3%", "output_throughput<=-5%", "x" * 10_000, "output_throughput<١%"],
)  # fmt: skip
def test_a_malformed_rule_is_refused_with_the_form_that_is_legal(text: str) -> None:
    with pytest.raises(InputError, match="is no rule") as caught:
        parse_rule(text)
    assert caught.value.legal == ("METRIC<-5% or METRIC>+5%",)
    assert caught.value.exit_code == 2
    assert len(str(caught.value)) < 400


def test_an_unknown_metric_is_refused_with_all_legal_ones_and_the_nearest() -> None:
    with pytest.raises(InputError, match="no metric 'output_troughput'") as caught:
        parse_rule("output_troughput<-5%")
    assert set(caught.value.legal or ()) == set(NAMES)
    assert "did you mean 'output_throughput'?" in str(caught.value)


@pytest.mark.parametrize("limit", ["-100%", "-150%", "9" * 400 + "%"])
def test_a_limit_that_no_change_can_reach_is_refused(limit: str) -> None:
    with pytest.raises(InputError, match="is no limit"):
        parse_rule(f"output_throughput<{limit}")
