from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from harness.analysis.compare import analyse
from harness.analysis.results import Analysis
from harness.errors import InputError, StoreError
from harness.record import SCHEMA_VERSION as STORED_VERSION
from harness.record import BenchRecord, TrialRecord
from harness.report import export
from tests import records

ROOT = Path(__file__).resolve().parents[2]
Stored = tuple[BenchRecord, tuple[TrialRecord, ...], Analysis]


def stored(bench: BenchRecord, trials: Sequence[TrialRecord]) -> Stored:
    return bench, tuple(trials), analyse(bench, trials)


@pytest.fixture(scope="module")
def run() -> Stored:
    """Four trials, one each: measured, failed, skipped, never finished."""
    bench, made = records.bench(1)
    return stored(
        bench,
        (
            made[0],
            records.failed(made[1], "the server died"),
            records.skipped(made[2], "no FP8 here"),
            records.half_written(made[3]),
        ),
    )


def test_json_is_a_list_that_pandas_reads_in_one_line(run: Stored, tmp_path: Path) -> None:
    export.export_trials(f"{tmp_path}/trials.json", *run)
    table = pd.read_json(tmp_path / "trials.json")
    assert table["status"].tolist() == ["sealed", "failed", "skipped", "started"]
    assert table["completed"].tolist()[0] == 50
    assert table.loc[0, "median_ttft_ms"] > 0
    # What became of the others is no zero.
    assert table.loc[2, ["duration", "output_throughput", "mean_ttft_ms"]].isna().all()
    assert table.loc[1, "reason"] == "the server died"


def test_unknown_is_null_in_json_and_empty_in_csv(run: Stored, tmp_path: Path) -> None:
    export.export_trials(f"{tmp_path}/trials.json", *run)
    export.export_trials(f"{tmp_path}/trials.csv", *run)
    document = json.loads((tmp_path / "trials.json").read_text())[2]
    row = list(csv.DictReader(io.StringIO((tmp_path / "trials.csv").read_text())))[2]
    nulls = {name for name, value in document.items() if value is None}
    assert {"mean_ttft_ms", "completed", "kv_cache_tokens", "preemptions"} <= nulls
    assert {name for name, value in row.items() if value == ""} == nulls


def test_csv_and_json_have_the_same_fields(run: Stored, tmp_path: Path) -> None:
    export.export_trials(f"{tmp_path}/trials.json", *run)
    export.export_trials(f"{tmp_path}/trials.csv", *run)
    rows, table = pd.read_json(tmp_path / "trials.json"), pd.read_csv(tmp_path / "trials.csv")
    assert list(rows) == list(table)
    assert rows["output_throughput"].tolist()[0] == pytest.approx(table["output_throughput"][0])
    assert table["is_baseline"].tolist() == [True, True, False, False]


def test_a_folder_holds_one_whole_document_per_measured_trial(run: Stored, tmp_path: Path) -> None:
    (path,) = export.export_trials(f"{tmp_path}/each/", *run, detailed=True)
    assert [file.name for file in (tmp_path / "each").iterdir()] == [path.name]
    document = json.loads(path.read_text())
    assert document["trial_id"] == path.stem == "fp16-exercise-r0"
    assert len(document["ttfts"]) == len(document["generated_texts"]) == 50
    # TTFT is a list of seconds and a figure in milliseconds, as the engine's file has it.
    assert document["mean_ttft_ms"] == pytest.approx(sum(document["ttfts"]) / 50 * 1000)


def test_lists_per_request_are_there_when_asked_for_alone(run: Stored, tmp_path: Path) -> None:
    export.export_trials(f"{tmp_path}/plain.json", *run)
    export.export_trials(f"{tmp_path}/detailed.json", *run, detailed=True)
    plain, full = (
        json.loads((tmp_path / f"{name}.json").read_text())[0] for name in ("plain", "detailed")
    )
    assert set(full) - set(plain) == {
        *("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times"),
        *("queue_times", "generated_texts", "errors"),
    }


def test_every_request_is_a_row_that_pandas_reads_in_one_line(run: Stored, tmp_path: Path) -> None:
    export.export_requests(f"{tmp_path}/requests.csv", *run)
    table = pd.read_csv(tmp_path / "requests.csv")
    # 52 of the measured trial, 5 of the failed, 3 of the unfinished one, none of the skipped.
    assert table["trial_id"].value_counts().tolist() == [52, 5, 3]
    assert (table["phase"] == "warmup").sum() == 6
    assert table["ttft_s"].tolist() == pytest.approx(
        (table["first_chunk_s"] - table["sent_s"]).tolist()
    )
    assert table["error"].isna().all()


def test_a_run_without_requests_exports_the_names_of_the_columns(tmp_path: Path) -> None:
    bench, made = records.bench(1)
    export.export_requests(
        f"{tmp_path}/requests.csv", *stored(bench, [records.skipped(made[0], "no")])
    )
    table = pd.read_csv(tmp_path / "requests.csv")
    assert (len(table), tuple(table)) == (0, export.REQUEST_COLUMNS)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1", "'+1"),
        ("-1+1", "'-1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r\n =1", "'\r\n =1"),
        ("＝1", "'＝1"),
        ("a;=1", "a;'=1"),
        ("a=b, c-d", "a=b, c-d"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("\x1b[2J\x00", "\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_no_text_becomes_a_formula(text: str, shown: str) -> None:
    assert export.cell(text) == shown


def test_numbers_are_whole_and_never_quoted() -> None:
    assert [export.cell(value) for value in (-0.125, 0, None, True)] == ["-0.125", "0", "", "true"]
    assert float(export.cell(0.1 + 0.2)) == 0.1 + 0.2


def test_hostile_texts_stay_in_their_cell(tmp_path: Path) -> None:
    bench, (first, *_) = records.bench(1)
    evil = '=HYPERLINK("http://x","y"),\n"second line"'
    broken = replace(
        first, requests=tuple(replace(r, text=evil, error=evil) for r in first.requests)
    )
    path = export.export_requests(f"{tmp_path}/r.csv", *stored(bench, [broken]))
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert len(rows) == 52
    assert {row["text"] for row in rows} == {"'" + evil}
    assert not any(value.startswith(("=", "+", "@")) for row in rows for value in row.values())


def test_a_failed_write_leaves_what_was_there_and_no_half(run: Stored, tmp_path: Path) -> None:
    target = tmp_path / "requests.csv"
    target.write_text("before")
    bench, trials, analysis = run

    class Fails(tuple[TrialRecord, ...]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            yield trials[0]
            raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match="No space left"):
        export.export_requests(str(target), bench, Fails(), analysis)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_can_not_be_finished_does_not_appear(run: Stored, tmp_path: Path) -> None:
    bench, trials, analysis = run
    twice = (trials[0], trials[0])
    with pytest.raises(StoreError, match="exists"):
        export.export_trials(f"{tmp_path}/each/", bench, twice, analysis)
    assert not list(tmp_path.iterdir())


def test_a_trials_name_that_is_a_path_can_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    bench, (first, *_) = records.bench(1)
    evil = replace(
        first, run=replace(first.run, trial=replace(first.run.trial, trial_id="../../x"))
    )
    (path,) = export.export_trials(f"{tmp_path}/each/", *stored(bench, [evil]))
    assert path.resolve().parent == (tmp_path / "each").resolve()


@pytest.mark.parametrize("target", ["figures", "figures.txt", "", ".json"])
def test_a_target_without_a_form_is_told_the_legal_ones(target: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"FILE\.json"):
        export.check_target(target, tmp_path)


def test_no_export_lies_among_the_stored_records_or_over_other_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="stored records"):
        export.check_target(f"{tmp_path}/trial/run.json", tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(InputError, match="not an empty folder"):
        export.check_target(f"{tmp_path}/full", tmp_path / "run")
    export.check_target(f"{tmp_path}/new/", tmp_path / "run")


def test_the_document_of_formats_names_every_field_and_both_versions(run: Stored) -> None:
    text = (ROOT / "docs/results-format.md").read_text()
    bench, trials, analysis = run
    names = set(export.trial_row(bench, trials[0], analysis.trials[0]))
    latencies = {name for name in names if name.endswith("_ms")}
    for name in (names - latencies) | set(export.REQUEST_COLUMNS):
        assert f"`{name}`" in text, name
    for name in latencies:
        statistic, metric, _ = name.split("_")
        assert f"`{statistic}_…_ms`" in text
        assert f"`{metric}`" in text
    assert f"beside them) | {STORED_VERSION} |" in text
    assert f"document or row) | {export.SCHEMA_VERSION} |" in text


@pytest.mark.parametrize("target", ["each/", "trials.json", "trials.csv"])
def test_what_lies_beside_an_export_is_nobodys_to_remove(
    target: str, run: Stored, tmp_path: Path
) -> None:
    beside = tmp_path / f"{target.rstrip('/')}.tmp"
    beside.mkdir()
    (beside / "notes").write_text("mine")
    export.export_trials(f"{tmp_path}/{target}", *run)
    assert (beside / "notes").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [beside.name, target.rstrip("/")]
    )


def test_an_export_is_as_readable_as_any_new_file(run: Stored, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    (tmp_path / "folder").mkdir()
    (inside,) = export.export_trials(f"{tmp_path}/each/", *run)
    export.export_trials(f"{tmp_path}/trials.json", *run)
    mode = (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "trials.json").stat().st_mode == inside.stat().st_mode == mode
    assert (tmp_path / "each").stat().st_mode == (tmp_path / "folder").stat().st_mode
