import json
from dataclasses import replace

import pytest

from harness.analysis.compare import analyse, to_json
from harness.analysis.headline import widest_interval
from harness.scenario import Workload
from harness.scenario.schema import workload_label
from tests.analysis.build import judged, with_run
from tests.records import EXERCISE, GPU_MACHINE, KV_BOUND, bench, failed, half_written, skipped


@pytest.fixture(scope="module")
def run():
    return bench()


@pytest.fixture(scope="module")
def analysis(run):
    return analyse(*run)


def redo(run, change):
    """The analysis of a run whose records went through ``change``."""
    record, trials = run
    return analyse(record, [change(trial) for trial in trials])


def test_every_trial_is_there_in_running_order_whatever_the_order_of_the_records(run, analysis):
    record, trials = run
    shuffled = analyse(record, tuple(reversed(trials)))
    assert tuple(trial.trial_id for trial in shuffled.trials) == record.trial_ids
    assert shuffled == analysis


def test_each_workload_is_compared_by_itself_with_the_baseline_first(analysis):
    labels = [comparison.workload_label for comparison in analysis.comparisons]
    assert labels == [workload_label(EXERCISE), workload_label(KV_BOUND)]
    assert all(c.variants == ("fp16", "fp8") for c in analysis.comparisons)
    assert all(row.cells[0].is_baseline for c in analysis.comparisons for row in c.rows)


def test_the_label_of_a_stored_workload_is_that_of_the_scenario():
    closed = {key: value for key, value in EXERCISE.items() if key != "burstiness"}
    label = "exercise: 512+16 tokens × 50, concurrency 4"
    assert workload_label(EXERCISE) == Workload(**closed).label == label
    rate = {**EXERCISE, "name": None, "concurrency": None, "request_rate": 2.5}
    assert workload_label(rate) == Workload(**rate).label == "512+16 tokens × 50, 2.5 req/s"


def test_predicted_and_granted_pools_agree_to_the_block(analysis):
    fp16, fp8 = analysis.kv
    # 117,964,800 B / (128 × 23,040 B) = 40 blocks; at 11,520 B 80 blocks
    assert (fp16.predicted.num_blocks, fp8.predicted.num_blocks) == (40, 80)
    assert (fp16.error_tokens, fp8.error_tokens) == (0, 0)
    assert fp16.agrees is True
    assert fp8.agrees is True
    assert fp8.capacity_ratio == fp8.modelled_capacity_ratio == 2.0
    assert fp8.bytes_per_token_ratio == 0.5
    assert analysis.headline.theory_agrees is True


def test_concurrency_is_also_given_at_the_length_of_the_workload(analysis):
    # kv-bound: 768 tokens are 6 blocks of 128; 40 / 6
    assert analysis.kv[0].concurrency_at_workload[workload_label(KV_BOUND)] == pytest.approx(40 / 6)
    # the engine's own figure supposes max_model_len: 5,120 / 1,024
    assert analysis.kv[0].granted.max_concurrency == 5.0


def test_a_pool_that_was_not_as_predicted_is_shown_with_its_error(run):
    def fewer(trial):
        granted = replace(trial.run.server.granted, num_gpu_blocks=39, kv_cache_tokens=4992)
        return with_run(trial, granted=granted) if trial.run.trial.variant == "fp16" else trial

    found = redo(run, fewer)
    assert found.kv[0].agrees is False
    assert found.kv[0].error_tokens == -128
    assert found.kv[0].error_fraction == pytest.approx(-128 / 5120)
    assert found.headline.theory_agrees is False
    assert "theory_disagrees" in {caution.code for caution in found.cautions}


def test_kv_in_use_is_held_against_whole_blocks_of_the_requests_in_flight(analysis):
    # exercise: 4 requests of 528 tokens, 5 blocks each, are 20 blocks of 128 tokens
    row = analysis.comparisons[0].row("kv_in_use_peak_tokens")
    assert row.cell("fp16").theory == 2560
    assert row.cell("fp16").value == pytest.approx(2560)
    assert analysis.comparisons[0].row("kv_in_use_peak_bytes").cell("fp8").theory == 2560 * 11_520


def test_the_null_block_holds_no_request(analysis):
    # kv-bound: 6 blocks a request; 39 of 40 blocks hold 6 of the 12 in flight, 79 of 80 all 12
    row = analysis.comparisons[1].row("kv_in_use_peak_tokens")
    assert row.cell("fp16").theory == 6 * 6 * 128
    assert row.cell("fp8").theory == 12 * 6 * 128


def test_a_model_of_which_nothing_is_known_has_no_theory_and_says_so(run):
    found = redo(run, lambda trial: with_run(trial, model_config=None))
    assert found.kv[0].predicted is None
    assert found.kv[0].agrees is None
    assert "nothing is known" in found.kv[0].predicted_reason
    assert found.headline.theory_agrees is None
    assert all(trial.theory is None for trial in found.trials)


def test_a_layout_that_is_not_modelled_costs_the_theory_and_nothing_else(run):
    strange = {"model_type": "from_the_future", "num_hidden_layers": 2, "kv_lora_rank": 8}
    found = redo(run, lambda trial: with_run(trial, model_config=strange))
    assert found.trials[0].theory is None
    assert found.trials[0].theory_reason
    assert found.trials[0].summary.completed == 50


def test_a_flag_of_a_form_that_theory_does_not_read_costs_the_theory_alone(run):
    found = redo(run, lambda trial: with_run(trial, server_flags={"max_model_len": "1k"}))
    assert found.trials[0].summary.completed == 50


def test_failed_skipped_and_half_written_trials_pass_through_as_such(run):
    record, trials = run
    spoilt = (
        failed(trials[0], "the server died"),
        half_written(trials[1]),
        skipped(trials[2], "no such dtype on this device"),
        *trials[3:-1],
    )
    found = analyse(record, spoilt)
    assert [trial.status for trial in found.trials[:3]] == ["failed", "started", "skipped"]
    assert found.trials[0].summary.completed == 3
    assert judged(found.trials[0].verdicts, "trial_failed") == {"*": "invalid"}
    assert found.trials[2].summary is None
    assert found.trials[2].reason == "no such dtype on this device"
    headline = found.headline
    # the half-written trial, and the last one, which left no record
    assert (headline.trials_sealed, headline.trials_failed) == (8, 1)
    assert (headline.trials_skipped, headline.trials_unfinished) == (1, 2)
    cell = found.comparisons[0].row("output_throughput").cell("fp16")
    assert [repeat for repeat, _ in cell.replicates] == [1, 2]
    json.dumps(to_json(found), allow_nan=False)


def test_a_run_of_which_nothing_is_left_is_analysed_without_a_crash(run):
    record, trials = run
    assert analyse(record, ()).headline.trials_unfinished == len(trials)
    nothing = analyse(record, [skipped(trial, "no engine") for trial in trials])
    assert nothing.comparisons[0].row("output_throughput").cell("fp16").value is None
    json.dumps(to_json(nothing), allow_nan=False)


def test_a_server_that_was_already_running_is_one_variant_without_theory_or_ledger():
    record, trials = bench(1, variants=("fp16",))
    attached = [
        with_run(
            t, model_config=None, launched=False, log_kv_lines=(), kv_budget={"mode": "engine"}
        )
        for t in trials
    ]
    found = analyse(record, attached)
    assert found.ledgers == ()
    assert found.comparisons[0].variants == ("fp16",)
    assert found.headline.findings == ()


def test_each_variant_that_was_launched_has_a_ledger(analysis):
    assert [ledger.variant for ledger in analysis.ledgers] == ["fp16", "fp8"]
    pool = analysis.ledgers[0].lines[1]
    assert pool.predicted_bytes == pool.granted_bytes == 117_964_800


def test_a_variant_started_as_the_baseline_widens_the_noise_floor(run):
    record, trials = run

    def as_twin(trial):
        if trial.run.trial.variant != "fp8":
            return trial
        flags = {**trial.run.trial.server_flags, "kv_cache_dtype": "auto"}
        return with_run(trial, variant="again", server_flags=flags)

    row = analyse(record, [as_twin(t) for t in trials]).comparisons[0].row("output_throughput")
    assert row.noise.launches == 6
    values = [value for cell in row.cells for _, value in cell.replicates]
    assert row.noise.ratio == pytest.approx(max(values) / min(values))
    # an A/A run lies inside its own floor by construction
    assert row.cell("again").effect == "no difference shown"


def test_the_least_certain_interval_decides_on_more_repeats(analysis):
    rows = [c.row("output_throughput") for c in analysis.comparisons]
    widths = [row.cell("fp8").interval.relative_width for row in rows]
    assert widest_interval(analysis.comparisons).relative_width == max(widths)
    assert widest_interval(analyse(*bench(2)).comparisons) is None


def test_on_a_gpu_energy_and_device_memory_are_rows_with_values():
    found = analyse(*bench(1, environment=GPU_MACHINE))
    comparison = found.comparisons[0]
    assert comparison.row("energy_per_output_token_j").cell("fp16").value > 0
    assert comparison.row("gpu_used_peak_bytes").cell("fp16").value == 2 << 30
    # the fp8 server was given another attention backend
    codes = {v.code for v in comparison.row("output_throughput").cell("fp8").verdicts}
    assert "attention_backend_differs" in codes


def test_prediction_never_leans_on_the_blocks_that_were_granted(run):
    def half(trial):
        granted = replace(
            trial.run.server.granted, num_gpu_blocks=1, kv_cache_tokens=128, block_size=64
        )
        return with_run(trial, granted=granted)

    assert redo(run, half).kv[0].predicted.num_blocks == 40
