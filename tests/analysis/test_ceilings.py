from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from harness.analysis.compare import analyse, to_json
from harness.record import BenchRecord, CpuPeaks, TrialRecord
from harness.report.tables import table
from tests.records import CPU_MACHINE, EXERCISE, GPU_MACHINE, bench

#: Far above what the made-up run reached, so that no figure beats it.
PEAKS = CpuPeaks(bandwidth_bytes_per_s=40e9, flops_per_s=1e12)
MEASURED = replace(CPU_MACHINE, cpu_peaks=PEAKS)

Made = tuple[BenchRecord, tuple[TrialRecord, ...]]


@pytest.fixture(scope="module")
def run() -> Made:
    return bench(3, workloads=(EXERCISE,), environment=MEASURED)


def under(made: Made, workload: dict[str, Any] | None = None, **changes: Any) -> Made:
    """The run in which every trial's record says something else."""
    record, trials = made
    return record, tuple(
        replace(
            trial,
            run=replace(
                trial.run,
                environment=changes.get("environment", trial.run.environment),
                trial=replace(
                    trial.run.trial,
                    workload={**trial.run.trial.workload, **(workload or {})},
                    server_flags={**trial.run.trial.server_flags, **changes.get("flags", {})},
                ),
            ),
        )
        for trial in trials
    )


def test_the_least_tpot_is_the_weights_and_the_context_read_once(run: Made) -> None:
    first = analyse(*run).trials[0]
    assert first.ceilings is not None
    # SmolLM2-135M: 134,515,008 parameters, each read once in bf16 (the tied embedding as head);
    # 513 tokens of context × 23,040 B. The rotary table adds a little.
    read = 2 * 134_515_008 + 513 * 23_040
    assert first.ceilings.tpot_s == pytest.approx(read / 40e9, rel=0.01)
    assert first.ceilings.device == CPU_MACHINE.cpu


def test_the_shares_of_peak_are_those_of_the_measured_rate(run: Made) -> None:
    first = analyse(*run).trials[0]
    assert first.ceilings is not None
    assert first.summary is not None
    rate = first.summary.output_throughput
    assert rate is not None
    # The ceiling is reached when the scarcer of the two is used to the full.
    scarcer = max(first.ceilings.mfu or 0.0, first.ceilings.mbu or 0.0)
    assert scarcer == pytest.approx(rate / first.ceilings.output_throughput)


def test_figures_below_their_ceilings_are_not_blamed(run: Made) -> None:
    codes = {verdict.code for trial in analyse(*run).trials for verdict in trial.verdicts}
    assert "beyond_ceiling" not in codes


def test_a_figure_that_beats_its_ceiling_is_suspect_and_stays_a_number(run: Made) -> None:
    slow = replace(CPU_MACHINE, cpu_peaks=CpuPeaks(1e9, 1e9))
    analysis = analyse(*under(run, environment=slow))
    found = [v for v in analysis.trials[0].verdicts if v.code == "beyond_ceiling"]
    assert {verdict.field for verdict in found} == {"output_throughput", "ttft_s", "tpot_s"}
    assert all(verdict.verdict == "suspect" for verdict in found)
    assert "either the measurement or the ceiling is wrong" in found[0].reason
    row = analysis.comparisons[0].row("output_throughput")
    assert row is not None
    assert row.cells[0].value is not None
    assert row.cells[0].verdict == "suspect"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"environment": CPU_MACHINE}, "were not measured"),
        ({"workload": {"shared_prefix_tokens": 100}}, "share a prefix"),
        ({"workload": {"turns": 2}}, "share a prefix"),
        ({"flags": {"data_parallel_size": 2}}, "data_parallel_size"),
        ({"flags": {"speculative_config": {"method": "ngram"}}}, "speculative_config"),
    ],
)
def test_without_a_sound_bound_there_is_none_and_the_reason_is_told(
    run: Made, changes: dict[str, Any], reason: str
) -> None:
    first = analyse(*under(run, **changes)).trials[0]
    assert first.ceilings is None
    assert first.ceilings_reason is not None
    assert reason in first.ceilings_reason


def test_an_attached_server_is_held_against_no_device_of_ours(run: Made) -> None:
    record, trials = run
    away = [
        replace(t, run=replace(t.run, server=replace(t.run.server, launched=False)))
        for t in trials
        if t.run.server is not None
    ]
    first = analyse(record, away).trials[0]
    assert first.ceilings is None
    assert "attached" in (first.ceilings_reason or "")


def test_a_gpu_is_held_against_its_data_sheet_and_an_unknown_one_against_nothing() -> None:
    made = bench(1, workloads=(EXERCISE,), environment=GPU_MACHINE)
    first = analyse(*made).trials[0]
    assert first.ceilings is not None
    assert (first.ceilings.device, first.ceilings.bandwidth_bytes_per_s) == ("h200", 4.8e12)
    card = replace(GPU_MACHINE.gpus[0], name="Example Card 9")
    unknown = analyse(*under(made, environment=replace(GPU_MACHINE, gpus=(card,)))).trials[0]
    assert unknown.ceilings is None
    assert unknown.ceilings_reason == "no data sheet is known for Example Card 9"
    part = replace(GPU_MACHINE.gpus[0], mig=True)
    split = analyse(*under(made, environment=replace(GPU_MACHINE, gpus=(part,)))).trials[0]
    assert split.ceilings is None


def test_tables_call_a_bound_a_bound(run: Made) -> None:
    rows = {row.metric: row for row in table(analyse(*run).comparisons[0]).rows}
    assert rows["output_throughput"].cells[0].theory.startswith("at most ")
    assert rows["ttft_s.p50"].cells[0].theory.startswith("at least ")
    assert rows["kv.kv_cache_tokens"].cells[0].theory == "5,120"


def test_bounds_stand_in_the_json(run: Made) -> None:
    row = json.loads(json.dumps(to_json(analyse(*run))))["rows"][0]
    assert row["ceilings"]["bandwidth_bytes_per_s"] == 40e9
    assert row["ceilings_reason"] is None
