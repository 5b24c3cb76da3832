from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.compare import analyse
from harness.record import BenchRecord, CpuPeaks, TrialRecord
from harness.report import evidence
from tests import records
from tests.report.stored import store_run


def lines_of(
    tmp_path: Path, bench: BenchRecord, trials: list[TrialRecord]
) -> tuple[evidence.TrialLine, ...]:
    run = store_run(bench, trials, tmp_path / "results")
    return evidence.trials_of(bench, trials, analyse(bench, trials), run, tmp_path / "reports")


def test_a_command_can_be_pasted_into_a_shell() -> None:
    words = ["kvbench", "bench", "it's $HOME; rm -rf /", "--set", "a=b c"]
    text = evidence.command_text(words, {"VLLM_X": "1 2"})
    assert shlex.split(text) == ["VLLM_X=1 2", *words]


def test_trials_of_every_fate_are_listed_in_running_order(tmp_path: Path) -> None:
    bench, made = records.bench(1)
    trials = [
        records.failed(made[0], "the server died"),
        records.skipped(made[1], "no FP8 here"),
        records.half_written(made[2]),
    ]
    lines = lines_of(tmp_path, bench, trials)
    assert [line.trial_id for line in lines] == list(bench.trial_ids)
    assert [line.status for line in lines] == ["failed", "skipped", "not finished", "not begun"]
    assert lines[0].reason == "the server died"
    assert "ERROR the last line" in lines[0].log_tail
    assert lines[2].counts == "1 of 50, 1 line torn"


def test_a_trials_requests_stand_with_their_number_and_a_link_to_the_raw_file(
    tmp_path: Path,
) -> None:
    bench, made = records.bench(1, workloads=(records.EXERCISE,))
    line = lines_of(tmp_path, bench, list(made))[0]
    # 50 measured and 2 warm-up requests.
    assert line.requests.told == "All 52 requests, in order of sending."
    assert len(line.requests.lines) == 52
    assert (tmp_path / "reports" / line.requests_link).resolve().is_file()


def test_links_lead_from_the_page_to_the_raw_files(tmp_path: Path) -> None:
    bench, made = records.bench(1)
    line = lines_of(tmp_path, bench, list(made))[0]
    names = [name for name, _ in line.links]
    assert names == ["run.json", "requests.jsonl", "samples.jsonl", "server.log"]
    for _, address in line.links:
        assert (tmp_path / "reports" / address).resolve().is_file()


def test_a_link_can_not_break_out_of_its_attribute(tmp_path: Path) -> None:
    address = evidence.link(tmp_path / 'a"><script>' / "run.json", tmp_path)
    assert address == "a%22%3E%3Cscript%3E/run.json"


@pytest.mark.parametrize(
    ("dirty", "words"), [(True, "uncommitted"), (False, "clean"), (None, "unknown")]
)
def test_the_revision_is_told_with_the_state_of_the_tree(dirty: bool | None, words: str) -> None:
    facts = evidence.machine(replace(records.CPU_MACHINE, git_dirty=dirty))
    revision = next(fact.text for fact in facts if fact.name == "Git revision")
    assert revision.startswith("0123456789abcdef")
    assert words in revision


def test_the_harness_own_time_is_what_servers_and_load_leave() -> None:
    bench, trials = records.bench(1)
    timed = replace(bench, wall_s=100.0, server_startup_s=60.0, load_s=30.0, server_stop_s=8.0)
    facts = evidence.setup(timed, trials, analyse(timed, trials))
    # 100 − 60 − 30 − 8 = 2 s, which is 2 % of 100 s.
    assert "kvbench itself 2.00 s (2.0 %)" in next(f.text for f in facts if f.name == "Time")


def test_the_ceilings_are_told_with_their_source_or_why_there_are_none() -> None:
    bench, trials = records.bench(1)
    unknown = next(
        f.text
        for f in evidence.setup(bench, trials, analyse(bench, trials))
        if f.name.startswith("Ceilings")
    )
    assert unknown.startswith("unknown: this CPU's bandwidth")
    machine = replace(records.CPU_MACHINE, cpu_peaks=CpuPeaks(40e9, 1e12))
    bench, trials = records.bench(1, environment=machine)
    facts = evidence.setup(bench, trials, analyse(bench, trials))
    told = next(f.text for f in facts if f.name.startswith("Ceilings"))
    assert "40.0 GB/s, 1.00 TFLOP/s (measured with torch" in told


def test_questions_about_quality_are_none_of_the_harness_own_time() -> None:
    bench, _ = records.bench(1)
    timed = replace(bench, wall_s=99.0, server_startup_s=50.0, load_s=20.0, server_stop_s=8.0)
    # 99 + 1 (report) − 50 − 20 − 8 − 20 (questions) = 2 s of 100 s.
    told = evidence.time_text(replace(timed, quality_s=20.0), 1.0)
    assert "asked about quality 20.0 s" in told
    assert told.endswith("kvbench itself 2.00 s (2.0 %)")


@pytest.mark.parametrize(
    ("repeats", "text"), [(1, "1: one server start per variant"), (3, "3, variants interleaved")]
)
def test_repeats_are_called_interleaved_only_where_there_are_several(
    repeats: int, text: str
) -> None:
    bench, trials = records.bench(1)
    asked = replace(bench, scenario={**bench.scenario, "repeats": repeats})
    facts = evidence.setup(asked, trials, analyse(bench, trials))
    assert next(f.text for f in facts if f.name == "Repeats").startswith(text)


def test_pools_tell_prediction_grant_and_error() -> None:
    bench, trials = records.bench(1)
    pool = evidence.pools(analyse(bench, trials))[1]
    assert (pool.variant, pool.predicted, pool.granted, pool.error) == (
        "fp8",
        "10,240",
        "10,240",
        "none",
    )
