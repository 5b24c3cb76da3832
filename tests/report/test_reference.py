from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.analysis.compare import analyse
from harness.record import SCHEMA_VERSION, BenchRecord, TrialRecord
from harness.report import html, reference
from harness.report.section import drawn_sections
from tests import records
from tests.analysis import reference as engine
from tests.analysis.test_scaling import GROWING, NONE, STATIC, with_cache, without_cache


def bench(trials: list[TrialRecord], claims: list[str]) -> BenchRecord:
    return BenchRecord(
        schema_version=SCHEMA_VERSION,
        run_id="20300102-030405-abcd",
        scenario_name="cache_vs_no_cache",
        scenario={"engine": "reference", "claims": claims, "kv_budget": {"mode": "engine"}},
        environment=records.CPU_MACHINE,
        command=("kvbench", "bench", "cache_vs_no_cache"),
        trial_ids=tuple(trial.run.trial.trial_id for trial in trials),
        status="finished",
    )


def timed() -> list[TrialRecord]:
    return [
        *engine.trials("no_cache", without_cache, NONE),
        *engine.trials("cache", with_cache, GROWING),
    ]


def reserved() -> list[TrialRecord]:
    loads = ((54, 8), (242, 8), (4, 8))
    return [
        *engine.trials("growing", with_cache, GROWING, 3, loads),
        *engine.trials("static", with_cache, STATIC, 3, loads),
    ]


def page(trials: list[TrialRecord], claims: list[str], folder: Path) -> str:
    run = bench(trials, claims)
    analysis = analyse(run, trials)
    sections = drawn_sections(run, trials, analysis, folder)
    return html.page(run, trials, analysis, [], sections, run_dir=folder, folder=folder)


def test_the_section_tells_claim_theory_and_exponents_with_intervals() -> None:
    trials = timed()
    run = bench(trials, ["C1"])
    found = reference.section(run, trials, analyse(run, trials))
    assert found is not None
    # 1,028 tokens: 20 + 1,028 ms against 20 ms, both 1 % slower in the launch in the middle.
    assert found.lead.startswith(
        "At 1,028 tokens the next token takes 1.06 s without a cache and 20.2 ms with one: 52.4× "
        "as long."
    )
    assert found.claims == ("C1",)
    assert "623,251 of them again" in found.theory
    assert "1.00 [1.00, 1.00] for one token" in found.measured[0]
    assert "never set beside a server's throughput" in found.measured[-1]
    assert {grid.head[0] for grid in found.grids} == {"Variant", "Tokens", "Request"}


def test_the_section_of_reservations_tells_what_stays_empty() -> None:
    trials = reserved()
    run = bench(trials, ["C6"])
    found = reference.section(run, trials, analyse(run, trials))
    assert found is not None
    # 3 × 4,096 × 23,040 B = 270 MiB, and 1 − 321/12,288 of it empty.
    assert found.lead.startswith(
        "Whole-length reservations hold 270.00 MiB for the 3 requests, of which 97.4 % is empty."
    )
    assert [chart.name for chart in found.charts] == ["reserved-bytes"]


def test_the_page_opens_with_the_finding_and_shows_the_charts(tmp_path: Path) -> None:
    text = page(timed(), ["C1"], tmp_path)
    assert '<p class="lead">At 1,028 tokens the next token takes' in text
    assert 'id="reference"' in text
    assert "Claim C1" in text
    assert (tmp_path / "time-by-length.png").is_file()
    assert "KV memory: predicted and granted" not in text


def test_the_page_of_reservations_draws_them(tmp_path: Path) -> None:
    assert "97.4 %" in page(reserved(), ["C6"], tmp_path)
    assert (tmp_path / "reserved-bytes.svg").is_file()


def test_a_run_without_intervals_shows_bare_exponents(tmp_path: Path) -> None:
    trials = [trial for trial in timed() if trial.run.trial.repeat == 0]
    run = bench(trials, ["C1"])
    found = reference.section(run, trials, analyse(run, trials))
    assert found is not None
    assert "to the power 1.00 for one token" in found.measured[0]


def test_a_run_in_which_everything_failed_has_no_section(tmp_path: Path) -> None:
    trials = [replace(t, run=replace(t.run, status="failed", reason="no memory")) for t in timed()]
    run = bench(trials, ["C1"])
    assert drawn_sections(run, trials, analyse(run, trials), tmp_path) == ()
    assert "Nothing was measured: no memory" in page(trials, ["C1"], tmp_path)


def test_a_run_of_a_server_has_none(tmp_path: Path) -> None:
    run, trials = records.bench()
    assert reference.section(run, trials, analyse(run, trials)) is None
