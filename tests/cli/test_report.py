from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from harness.cli.app import build
from harness.errors import InputError, StoreError
from tests import records
from tests.report.stored import store_run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    bench, made = records.bench(1, workloads=(records.EXERCISE,))
    store_run(bench, made, folder / "results")
    return folder


def report(root: Path, *words: str) -> str:
    said = ["report", "fp8_vs_fp16", "--out", f"{root}/results", "--reports", f"{root}/reports"]
    done = CliRunner().invoke(build(["report"]), [*said, *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_exports_are_written_beside_the_report_and_told(root: Path) -> None:
    targets = [f"{root}/out/trials.json", f"{root}/out/trials.csv", f"{root}/out/each/"]
    words = [word for target in targets for word in ("--export", target)]
    told = report(root, *words, "--export-requests", f"{root}/out/requests.csv", "--detailed")
    assert told.count("export: ") == 4
    assert len(pd.read_json(targets[0])) == len(pd.read_csv(targets[1])) == 2
    assert len(list((root / "out/each").iterdir())) == 2
    assert len(pd.read_csv(root / "out/requests.csv")) == 104


def test_the_figures_as_json_name_the_exports(root: Path) -> None:
    figures = json.loads(report(root, "--json", "--export", f"{root}/again.csv"))
    assert figures["exports"] == [f"{root}/again.csv"]
    rows = pd.read_csv(root / "again.csv")
    assert rows["output_throughput"].tolist() == pytest.approx(
        [row["metrics"]["output_throughput"] for row in figures["rows"]]
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--export", "figures.xlsx"), "can't tell the form"),
        (("--export-requests", "requests.json"), r"FILE\.csv"),
        (("--export", "a.csv", "--detailed"), "--detailed adds lists"),
        (("--scoreboard", "--export", "a.csv"), "a scoreboard has no export"),
        (
            ("--export", "a.csv", "--export-requests", "./a.csv"),
            "two exports can't go to one place",
        ),
    ],
)
def test_an_export_that_can_not_be_is_refused_before_anything_is_made(
    root: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        report(root, *words, "--reports", str(tmp_path / "reports"))
    assert not (tmp_path / "reports").exists()


def test_a_place_that_can_not_be_written_is_told_and_no_page_is_made(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="can't write the export"):
        report(root, "--export", f"{tmp_path}/file/x.json", "--reports", str(tmp_path / "reports"))
    assert not (tmp_path / "reports").exists()
