import json
import math
from dataclasses import dataclass

from harness.analysis.compare import analyse, to_json
from harness.analysis.run_json import plain
from tests.records import bench, skipped

RECORD, TRIALS = bench(1)

# The names that DESIGN section 4 promises.
ROW = {"trial", "variant", "repeat", "workload", "status", "reason"}
ROW |= {"metrics", "engine", "theory", "verdicts"}
METRICS = {"request_throughput", "output_throughput", "ttft_s", "tpot_s", "itl_s", "e2el_s"}
METRICS |= {"preemptions", "kv_usage_peak", "prompt_tokens", "output_tokens", "completed", "failed"}


@dataclass(frozen=True)
class Point:
    x: float
    y: tuple[float, ...]


def test_values_become_what_json_has_words_for():
    assert plain(Point(1.5, (math.nan, math.inf, 2.0))) == {"x": 1.5, "y": [None, None, 2.0]}
    assert plain({1: None, "a": True}) == {"1": None, "a": True}


def test_the_json_has_the_documented_rows():
    printed = to_json(analyse(RECORD, TRIALS), run="results/x", report="reports/x.html")
    assert (printed["run"], printed["report"], printed["profile"]) == (
        "results/x",
        "reports/x.html",
        "cpu",
    )
    row = printed["rows"][0]
    assert row.keys() >= ROW
    assert row["metrics"].keys() >= METRICS
    assert {"mean", "p50", "p90", "p99"} <= row["metrics"]["ttft_s"].keys()
    assert {"kv_cache_tokens", "num_gpu_blocks", "block_size", "max_concurrency"} <= row[
        "engine"
    ].keys()
    assert all({"field", "verdict", "reason"} <= verdict.keys() for verdict in row["verdicts"])


def test_theory_stands_beside_the_engines_figures_under_the_same_names():
    row = to_json(analyse(RECORD, TRIALS))["rows"][0]
    assert row["theory"]["kv_cache_tokens"] == row["engine"]["kv_cache_tokens"] == 5120
    assert row["theory"]["kv_bytes_per_token"] == 23_040


def test_the_whole_survives_a_strict_json_writer_and_comes_back_the_same():
    printed = to_json(analyse(RECORD, TRIALS))
    assert json.loads(json.dumps(printed, allow_nan=False)) == printed


def test_occupancy_goes_in_as_figures_without_its_points():
    seen = to_json(analyse(RECORD, TRIALS))["rows"][0]["metrics"]["occupancy"]
    assert seen["settled"] > 0
    assert "points" not in seen


def test_a_trial_without_figures_prints_null_and_its_reason():
    row = to_json(analyse(RECORD, [skipped(TRIALS[0], "no AVX-512")]))["rows"][0]
    assert (row["metrics"], row["status"], row["reason"]) == (None, "skipped", "no AVX-512")
