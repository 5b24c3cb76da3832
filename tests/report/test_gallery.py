from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness import store
from harness.analysis.compare import analyse
from harness.analysis.results import LedgerLine
from harness.record import BenchRecord, TrialRecord
from harness.report import gallery
from harness.report.charts import MAX_MARKS, PART_NAMES, Chart
from harness.report.plate import Plate
from tests import records
from tests.report.stored import unpacked


def plates_of(folder: Path, made: tuple[BenchRecord, tuple[TrialRecord, ...]]) -> dict[str, Plate]:
    bench, trials = made
    return {
        plate.picture.name: plate
        for plate in gallery.plates(analyse(bench, trials), trials, folder)
    }


def charts_of(made: tuple[BenchRecord, tuple[TrialRecord, ...]]) -> list[tuple[str, Chart]]:
    """The charts that a run gets, not drawn."""
    bench, trials = made
    return [(chart.name, chart) for chart in gallery.charts_of(analyse(bench, trials), trials)]


def test_each_chart_states_its_finding_and_how_to_read_it(tmp_path: Path) -> None:
    plates = plates_of(tmp_path, records.bench())
    titles = {name: plate.picture.title for name, plate in plates.items()}
    assert titles["kv-memory"] == (
        "Both variants get exactly the KV capacity that theory predicts, to the block"
    )
    assert titles["kv-in-use"].startswith("Peak KV in use is")
    assert titles["output-throughput"].startswith("kv-bound: fp8's output throughput is 1.2")
    assert "TTFT p50 is 0.05" in titles["latency"]
    for plate in plates.values():
        assert "better" in plate.caption or "hold more tokens" in plate.caption
        assert "fp16" in plate.alt
        assert plate.picture.png.is_file()
        assert plate.picture.svg.is_file()


def test_where_layers_free_blocks_theory_is_a_bound_and_tokens_are_requests(
    tmp_path: Path,
) -> None:
    found = dict(charts_of(store.read_bench(unpacked("token_eviction", tmp_path))))
    # A bound on what is held: variants below it are no error of theory.
    assert found["kv-in-use"].title.startswith("Peak KV in use stays within theory's bound in ")
    assert "requests that fit × 2,304" in found["kv-memory"].caption


def test_bars_are_not_described_as_marks_on_a_line() -> None:
    many = tuple(f"v{number}" for number in range(MAX_MARKS))
    caption = dict(charts_of(records.bench(1, variants=("fp16", *many))))["kv-memory"].caption
    assert caption.startswith("Left: dashed outlines are what the formula predicts")
    few = dict(charts_of(records.bench(1)))["kv-memory"].caption
    assert few.startswith("Left: each mark is one variant")


def test_without_intervals_a_title_claims_no_difference() -> None:
    titles = {name: chart.title for name, chart in charts_of(records.bench(1))}
    assert titles["output-throughput"].startswith(
        "Output throughput, observed without intervals: kv-bound, fp8 1.2"
    )


def test_a_title_leads_with_the_largest_effect_and_counts_the_rest() -> None:
    loads = tuple({**records.KV_BOUND, "name": name, "num_prompts": 12} for name in "abc")
    title = dict(charts_of(records.bench(workloads=loads)))["latency"].title
    assert title.startswith(("a: fp8's TTFT", "b: fp8's TTFT", "c: fp8's TTFT"))
    assert title.endswith("(and 1 more), against fp16")
    assert len(title) < 200


def test_a_ledger_of_a_single_known_use_is_not_drawn() -> None:
    bench, trials = records.bench(1)
    unknown = tuple(
        replace(t, run=replace(t.run, trial=replace(t.run.trial, model_config=None)))
        for t in trials
    )
    assert "memory-ledger" not in dict(charts_of((bench, unknown)))
    assert "memory-ledger" in dict(charts_of((bench, trials)))


def test_a_ledger_that_does_not_know_what_was_there_before_is_not_drawn() -> None:
    bench, trials = records.bench(1)
    analysis = analyse(bench, trials)
    blind = replace(
        analysis,
        ledgers=tuple(
            replace(each, before_bytes=None, loaded_bytes=10 << 30) for each in analysis.ledgers
        ),
    )
    names = {chart.name for chart in gallery.charts_of(blind, trials)}
    assert "kv-memory" in names
    assert "memory-ledger" not in names


def test_a_use_that_the_engine_says_took_nothing_is_drawn_as_nothing() -> None:
    bench, trials = records.bench(1)
    analysis = analyse(bench, trials)
    graphs = LedgerLine("activation_and_graphs", predicted_bytes=7 << 20, granted_bytes=0)
    told = replace(
        analysis,
        ledgers=tuple(replace(each, lines=(*each.lines[:2], graphs)) for each in analysis.ledgers),
    )
    (chart,) = (c for c in gallery.charts_of(told, trials) if c.name == "memory-ledger")
    assert f"{PART_NAMES['activation_and_graphs']} 0 B" in chart.alt
    assert "7.00 MiB" not in chart.alt


def test_loads_that_differ_in_concurrency_alone_become_a_sweep() -> None:
    small = {**records.EXERCISE, "name": None, "num_prompts": 6}
    levels = tuple({**small, "concurrency": level} for level in (1, 2, 4))
    names = dict(charts_of(records.bench(1, workloads=levels)))
    assert "512+16 tokens" in names["sweep-1"].title
    assert "at 1, " in names["sweep-1"].alt
    assert "sweep-1" not in dict(charts_of(records.bench(1, workloads=levels[:2])))


def test_an_invalid_figure_is_drawn_as_withheld() -> None:
    bench, trials = records.bench(1)
    lost = records.with_lost_requests(trials, "fp8")
    made = dict(charts_of((bench, lost)))
    assert "fp8 withheld: judged invalid" in made["output-throughput"].alt


def test_a_run_with_nothing_measured_gets_no_chart(tmp_path: Path) -> None:
    bench, trials = records.bench(1)
    assert plates_of(tmp_path, (bench, tuple(records.skipped(t, "no") for t in trials))) == {}
