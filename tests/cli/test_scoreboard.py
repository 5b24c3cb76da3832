from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.app import build
from harness.errors import InputError
from tests.analysis.test_scoreboard import fp8
from tests.execute.test_local import CONFIG
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


SCENARIO = """\
schema: 1
name: demo
model: {model}
baseline: paged
server: {{max_model_len: 1024, gpu_memory_utilization: 0.3, enable_prefix_caching: false}}
variants:
  paged: {{}}
  fp8: {{kv_cache_dtype: fp8}}
  offload: {{kv_offloading_size: 1, enable_prefix_caching: true}}
  preallocated: {{emulate: preallocation}}
kv_budget: {{equal_bytes: 117964800}}
workloads:
  - {{context_tokens: 64, output_tokens: 4, num_prompts: 6, concurrency: 2, warmup_requests: 0}}
repeats: 1
timeouts: {{startup_s: 60, request_s: 20}}
profiles: {{cpu: {{}}}}
"""


@pytest.mark.usefixtures("fake_engine")
def test_a_bench_of_many_strategies_gives_a_table_in_which_no_stamp_passes_for_another(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(CONFIG)
    (tmp_path / "demo.yaml").write_text(SCENARIO.format(model=model))
    where = ["--out", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    # Some skipped is no failure.
    run("bench", str(tmp_path / "demo.yaml"), "--profile", "cpu", *where, "--json")
    board = json.loads(run("report", "--scoreboard", "demo", *where, "--json"))
    stamps = {row["strategy"]: row["cells"]["throughput"]["stamp"] for row in board["rows"]}
    assert stamps == {
        "KV dtype fp8": "measured",
        "CPU offloading": "skipped",
        "preallocation": "emulated",
    }
    offload = next(row for row in board["rows"] if row["strategy"] == "CPU offloading")
    assert "only supported on CUDA" in offload["cells"]["throughput"]["note"]
    assert {cell["value"] for cell in offload["cells"].values()} == {None}
