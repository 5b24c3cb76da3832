from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.analysis.compare import analyse
from harness.report import latency_ecdf, style
from tests import records


def test_a_curve_passes_each_value_at_its_share() -> None:
    steps = latency_ecdf.steps("fp16", 0, np.array([0.4, 0.1, 0.3, 0.2]))
    # Sorted 0.1 0.2 0.3 0.4: a quarter of the values is at most 0.1, a half at most 0.2.
    assert steps.values_s == (0.1, 0.1, 0.2, 0.3, 0.4)
    assert steps.shares == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert steps.count == 4


def test_a_long_recording_is_drawn_with_few_corners_and_its_true_ends() -> None:
    values = np.linspace(0.001, 5.0, 100_000)
    steps = latency_ecdf.steps("fp16", 0, values)
    assert len(steps.values_s) == latency_ecdf.MAX_STEPS + 1
    assert (steps.values_s[0], steps.values_s[-1]) == (0.001, 5.0)
    assert steps.count == 100_000


def test_warm_up_and_unfinished_trials_are_left_out() -> None:
    bench, trials = records.bench(2, workloads=(records.EXERCISE,))
    mixed = [records.half_written(trials[0]), *trials[1:]]
    places = {"fp16": 0, "fp8": 1}
    (chart,) = latency_ecdf.ecdf_charts(analyse(bench, mixed), mixed, places)
    # One of the two fp16 repeats is left: 50 measured requests, its 2 warm-ups not counted.
    assert "TTFT of fp16: 50 values" in chart.alt
    assert "TTFT of fp8: 100 values" in chart.alt
    # 16 tokens make 15 gaps: 100 × 15.
    assert "ITL of fp8: 1,500 values" in chart.alt


def test_a_run_with_nothing_measured_has_no_spread() -> None:
    bench, trials = records.bench(1)
    nothing = [records.skipped(trial, "no") for trial in trials]
    assert not list(latency_ecdf.ecdf_charts(analyse(bench, nothing), nothing, {}))


def test_requests_that_ended_well_without_a_chunk_make_no_curve_and_no_traceback() -> None:
    bench, trials = records.bench(1, workloads=(records.EXERCISE,))
    silent = [
        replace(
            trial,
            requests=tuple(
                replace(r, first_chunk_s=None, last_chunk_s=None, chunk_times_s=(), output_tokens=0)
                for r in trial.requests
            ),
        )
        for trial in trials
    ]
    assert not list(latency_ecdf.ecdf_charts(analyse(bench, silent), silent, {"fp16": 0, "fp8": 1}))
    # Of one token per request there is a TTFT, but neither a TPOT nor a gap.
    one = [
        replace(
            trial,
            requests=tuple(
                replace(
                    r,
                    last_chunk_s=r.first_chunk_s,
                    chunk_times_s=(r.first_chunk_s,),
                    output_tokens=1,
                )
                for r in trial.requests
                if r.first_chunk_s is not None
            ),
        )
        for trial in trials
    ]
    (chart,) = latency_ecdf.ecdf_charts(analyse(bench, one), one, {"fp16": 0, "fp8": 1})
    assert "TTFT of fp16" in chart.alt
    assert "TPOT" not in chart.alt
    with style.drawing():
        assert len(chart.draw().axes) == 1


def test_variants_that_are_not_drawn_are_counted() -> None:
    names = ("fp16", *(f"v{number}" for number in range(latency_ecdf.MAX_LINES)))
    bench, trials = records.bench(1, variants=names, workloads=(records.EXERCISE,))
    places = {name: place for place, name in enumerate(names)}
    (chart,) = latency_ecdf.ecdf_charts(analyse(bench, trials), trials, places)
    assert "The figures of 1 more variant are in the tables." in chart.caption
