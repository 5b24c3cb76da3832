from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness import store
from harness.errors import NotFound, StoreError
from harness.report.build import build_report, report_folder
from tests import records
from tests.report.stored import store_run

ROOT = Path(__file__).parents[2]


def small_run(root: Path) -> Path:
    """One workload, one repeat: what the fate of a report does not depend on is left out."""
    return store_run(*records.bench(1, workloads=(records.EXERCISE,)), root)


def test_a_report_is_one_page_with_its_pictures_beside_it(tmp_path: Path) -> None:
    run = small_run(tmp_path / "results")
    made = build_report(run, reports_root=tmp_path / "reports")
    assert made.html == tmp_path / "reports/fp8_vs_fp16/20300102-030405-example/report.html"
    assert [path.stem for path in made.pngs] == [path.stem for path in made.svgs]
    written = {path.name for path in made.html.parent.iterdir()}
    assert written == {"report.html", *(path.name for path in (*made.pngs, *made.svgs))}


def test_failed_skipped_and_half_written_trials_are_shown_as_such(tmp_path: Path) -> None:
    bench, made = records.bench(2, workloads=(records.EXERCISE,))
    trials = list(made)
    trials[0] = records.failed(trials[0], "the server died: not enough memory")
    trials[1] = records.skipped(trials[1], "this device has no FP8")
    trials[2] = records.half_written(trials[2])
    run = store_run(replace(bench, status="interrupted"), trials[:-1], tmp_path / "results")
    with (run / trials[2].run.trial.trial_id / store.REQUESTS_FILE).open("ab") as stream:
        stream.write(b'{"index": 4, "pha')
    page = build_report(run, reports_root=tmp_path / "reports").html.read_text()
    for words in (
        "the server died: not enough memory",
        "this device has no FP8",
        "not finished",
        "not begun",
        "1 line torn",
        "run interrupted",
        "ERROR the last line",
    ):
        assert words in page


def test_a_run_of_which_only_the_manifest_was_written_still_gets_a_page(tmp_path: Path) -> None:
    bench, _ = records.bench(1)
    run = store_run(replace(bench, status="started", wall_s=None), (), tmp_path / "results")
    page = build_report(run, reports_root=tmp_path / "reports").html.read_text()
    assert "Nothing was measured" in page
    assert "4 trials not begun" in page


def test_a_rebuilt_report_keeps_no_picture_of_the_one_before(tmp_path: Path) -> None:
    run = small_run(tmp_path / "results")
    first = build_report(run, reports_root=tmp_path / "reports")
    stale = first.html.parent / "sweep-9.png"
    stale.write_bytes(b"old")
    second = build_report(run, reports_root=tmp_path / "reports")
    assert second == first
    assert not stale.exists()


@pytest.mark.parametrize("name", ["../../etc", "<script>", "/abs", "..", ""])
def test_names_from_a_record_can_not_lead_out_of_the_reports_folder(
    tmp_path: Path, name: str
) -> None:
    bench, _ = records.bench(1)
    folder = report_folder(replace(bench, scenario_name=name, run_id=name), tmp_path)
    assert folder.resolve().parent.parent == tmp_path.resolve()


def test_requests_that_ended_well_without_a_single_chunk_still_get_a_page(tmp_path: Path) -> None:
    bench, trials = records.bench(1, workloads=(records.EXERCISE,))
    nothing = {"first_chunk_s": None, "last_chunk_s": None, "chunk_times_s": (), "output_tokens": 0}
    silent = [
        replace(trial, requests=tuple(replace(r, **nothing) for r in trial.requests))
        for trial in trials
    ]
    run = store_run(bench, silent, tmp_path / "results")
    page = build_report(run, reports_root=tmp_path / "reports").html.read_text()
    assert "kv-memory" in page
    assert "latency-spread" not in page


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"kv_budget": "all of it"}, "scenario.kv_budget"),
        ({"variants": ["fp8"]}, "scenario.variants"),
        ({"claims": 7}, "scenario.claims"),
    ],
)
def test_a_manifest_of_another_shape_ends_in_a_message_that_names_file_and_place(
    tmp_path: Path, changes: dict[str, object], place: str
) -> None:
    run = small_run(tmp_path / "results")
    manifest = json.loads((run / store.BENCH_FILE).read_text())
    manifest["scenario"].update(changes)
    (run / store.BENCH_FILE).write_text(json.dumps(manifest))
    with pytest.raises(StoreError) as caught:
        build_report(run, reports_root=tmp_path / "reports")
    assert place in str(caught.value)
    assert str(run / store.BENCH_FILE) in str(caught.value)


def test_a_folder_without_a_run_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        build_report(tmp_path, reports_root=tmp_path / "reports")


def test_a_report_that_can_not_be_written_is_an_error_that_names_the_folder(
    tmp_path: Path,
) -> None:
    run = small_run(tmp_path / "results")
    (tmp_path / "reports").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="can't write the report") as caught:
        build_report(run, reports_root=tmp_path / "reports")
    assert str(tmp_path / "reports") in str(caught.value)


def test_a_report_needs_neither_engine_nor_gpu_nor_network(tmp_path: Path) -> None:
    run = small_run(tmp_path / "results")
    program = f"""
import socket, sys
from pathlib import Path
def refuse(*_): raise AssertionError("the network was asked")
socket.socket.connect = refuse
from harness.report.build import build_report
build_report(Path({str(run)!r}), reports_root=Path({str(tmp_path / "reports")!r}))
heavy = {{"vllm", "torch", "transformers", "pynvml", "openai"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
