from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.app import build
from harness.errors import InputError
from tests.analysis.test_scoreboard import fp8
from tests.report.stored import store_run


def run(*words: str) -> str:
    done = CliRunner().invoke(build(words), words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_stored_runs_are_joined_into_one_table(tmp_path: Path) -> None:
    bench, trials = fp8()
    store_run(bench, trials, tmp_path / "results")
    store_run(replace(bench, run_id="20300102-030406-ffff"), trials, tmp_path / "results")
    words = ["report", "--scoreboard", "--out", str(tmp_path / "results")]
    words += ["--reports", str(tmp_path / "reports"), bench.run_id, "20300102-030406-ffff"]
    board = json.loads(run(*words, "--json"))
    assert [row["run_id"] for row in board["rows"]] == [bench.run_id, "20300102-030406-ffff"]
    assert board["rows"][0]["cells"]["capacity"]["stamp"] == "measured"
    assert Path(board["report"]).is_file()
    assert "KV dtype fp8" in run(*words)


def test_two_runs_without_the_flag_are_refused(tmp_path: Path) -> None:
    words = ["report", "one", "two", "--out", str(tmp_path)]
    with pytest.raises(InputError, match="about one run"):
        CliRunner().invoke(build(words), words, catch_exceptions=False)
