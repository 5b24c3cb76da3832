from __future__ import annotations

import ast
import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis import bench_serve
from harness.analysis.metrics import summarize
from harness.record import RequestRecord, TrialRecord
from tests import records
from tests.engines.installed import Installed

# Found without being imported: the tests' own process stays free of the engine.
ENGINE = importlib.util.find_spec("vllm")
needs_engine = pytest.mark.skipif(
    ENGINE is None and not os.environ.get("CI"), reason="no vLLM in this environment"
)


def request(index: int, sent: float, chunks: tuple[float, ...], **more: object) -> RequestRecord:
    return RequestRecord(
        **{
            "index": index,
            "phase": "measured",
            "prompt_tokens_planned": 10,
            "output_tokens_planned": len(chunks),
            "planned_send_s": sent,
            "sent_s": sent,
            "first_chunk_s": chunks[0] if chunks else None,
            "last_chunk_s": chunks[-1] if chunks else None,
            "finished_s": chunks[-1] if chunks else None,
            "chunk_times_s": chunks,
            "prompt_tokens": 10,
            "output_tokens": len(chunks),
            **more,
        }
    )


@pytest.fixture
def small() -> TrialRecord:
    """Three requests that ended, one that failed, one warm-up."""
    whole = records.trial()
    made = (
        request(0, 1.0, (1.5, 1.7, 1.9)),
        request(1, 1.1, (2.1, 2.2)),
        request(2, 2.5, (3.5,)),
        request(3, 2.6, (), error="HTTP 500", finished_s=2.7, prompt_tokens=None),
        request(4, 0.1, (0.2, 0.3), phase="warmup"),
    )
    return replace(whole, run=replace(whole.run, load_start_s=1.0, load_end_s=4.0), requests=made)


def test_latencies_are_milliseconds_under_the_names_of_the_engine(small: TrialRecord) -> None:
    found = bench_serve.fields(small, summarize(small))
    # TTFT: 500, 1000, 1000 ms; mean 2500/3, deviation √(2·166.67² + 333.33²)/√3 = 235.70 ms.
    assert found["mean_ttft_ms"] == pytest.approx(2500 / 3)
    assert found["median_ttft_ms"] == pytest.approx(1000.0)
    assert found["std_ttft_ms"] == pytest.approx(235.7022)
    # TPOT: 400/2 and 100/1 ms; the request of one token has none.
    assert found["mean_tpot_ms"] == pytest.approx(150.0)
    # ITL: 200, 200, 100 ms. E2EL: 900, 1100, 1000 ms.
    assert found["median_itl_ms"] == pytest.approx(200.0)
    assert found["mean_e2el_ms"] == pytest.approx(1000.0)


def test_totals_count_what_was_measured_and_ended_well(small: TrialRecord) -> None:
    found = bench_serve.fields(small, summarize(small))
    assert (found["completed"], found["failed"], found["duration"]) == (3, 1, 3.0)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (30, 6)
    # 6 output tokens in 3 s; 36 tokens of both kinds.
    assert found["output_throughput"] == pytest.approx(2.0)
    assert found["total_token_throughput"] == pytest.approx(12.0)


def test_peaks_are_those_of_the_fullest_second_after_the_first_send(small: TrialRecord) -> None:
    found = bench_serve.fields(small, summarize(small))
    # Chunks at 0.5 0.7 0.9 | 1.1 1.2 | 2.5 s after the first send: three in second 0.
    assert found["max_output_tokens_per_s"] == 3.0
    # Alive in seconds 0–0, 0–1 and 1–2: two in second 0, two in second 1.
    assert found["max_concurrent_requests"] == 2


def test_what_is_unknown_is_none_and_never_zero(small: TrialRecord) -> None:
    skipped = records.skipped(small, "no FP8 here")
    found = bench_serve.fields(skipped, None)
    known = {name for name, value in found.items() if value is not None}
    assert known == {
        *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id"),
        *("num_prompts", "request_rate", "burstiness", "max_concurrency"),
    }


def test_a_p99_of_fewer_than_100_values_is_withheld_as_everywhere(small: TrialRecord) -> None:
    found = bench_serve.fields(small, summarize(small))
    assert found["p99_ttft_ms"] is None
    # 0, 1 … 99 ms: the 99th percentile is 98.01 ms, interpolated as numpy does.
    many = tuple(request(i, 1.0, (1.0 + i / 1000,)) for i in range(100))
    found = bench_serve.fields(replace(small, requests=many), None)
    assert found["p99_ttft_ms"] == pytest.approx(98.01)


def test_the_lists_hold_every_measured_request_in_order_of_sending(small: TrialRecord) -> None:
    lists = bench_serve.lists(small)
    assert lists["start_times"] == [1.0, 1.1, 2.5, 2.6]
    assert lists["errors"] == ["", "", "", "HTTP 500"]
    assert lists["ttfts"][3] is None
    assert lists["itls"][0] == pytest.approx([0.2, 0.2])
    assert {len(values) for values in lists.values()} == {4}


def engine_names(source: str, *, detailed: bool) -> set[str]:
    """The names that the engine's own source writes for a plain text load."""
    tree = ast.parse(source)
    benchmark = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "benchmark"
    )
    result = next(
        node.value
        for node in ast.walk(benchmark)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Dict)
        and "max_concurrent_requests" in ast.unparse(node.value)
    )
    names = {key.value for key in result.keys if isinstance(key, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Subscript):
            holder, key = ast.unparse(target.value), target.slice
            if holder == "result_json" and isinstance(key, ast.Constant):
                names.add(key.value)
            elif holder == "result" and isinstance(key, ast.JoinedStr):
                template = ast.unparse(key)[2:-1].replace("{metric_attribute_name}", "{0}")
                for metric in ("ttft", "tpot", "itl", "e2el"):
                    names.add(template.replace("{p_word}", "99").format(metric))
    lists = set(bench_serve.lists(records.trial(workload=records.EXERCISE)))
    return {n for n in names if not n.startswith("ramp_up_")} - (set() if detailed else lists)


def serve_source() -> str:
    assert ENGINE is not None
    assert ENGINE.origin is not None
    return (Path(ENGINE.origin).parent / "benchmarks/serve.py").read_text(encoding="utf-8")


@needs_engine
def test_the_fields_are_those_of_the_engines_own_source() -> None:
    trial = records.trial()
    ours = set(bench_serve.fields(trial, summarize(trial)))
    # p90 is what its --metric-percentiles 90,99 adds.
    added = {f"p90_{metric}_ms" for metric in ("ttft", "tpot", "itl", "e2el")}
    assert ours - added == engine_names(serve_source(), detailed=False)
    assert ours - added | set(bench_serve.lists(trial)) == engine_names(
        serve_source(), detailed=True
    )


@needs_engine
def test_the_engines_own_arithmetic_gives_the_same_figures(installed: Installed) -> None:
    """The engine is told the same target as the load's own trial: 5 s to the first token."""
    trial = replace(
        installed.load,
        run=replace(
            installed.load.run, trial=replace(installed.load.run.trial, slo={"ttft_s": 5.0})
        ),
    )
    ours = bench_serve.fields(trial, summarize(trial))
    theirs = installed.bench
    compared = {
        "completed": theirs["completed"],
        "failed": theirs["failed"],
        "total_input_tokens": theirs["total_input"],
        "total_output_tokens": theirs["total_output"],
        **{name: theirs[name] for name in theirs if name in ours},
    }
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for point, value in theirs[f"percentiles_{metric}_ms"]:
            compared[f"p{point:g}_{metric}_ms"] = value
    compared.pop("rtfx")
    assert len(compared) == 30
    for name, value in compared.items():
        assert ours[name] == pytest.approx(value, rel=1e-9), name
