from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.compare import analyse
from harness.record import CpuPeaks, Environment
from harness.report import charts, style
from harness.report.sweeps import charts_of_sweeps
from tests import records

LEVELS = tuple(
    {**records.EXERCISE, "name": None, "num_prompts": 6, "concurrency": level}
    for level in (1, 2, 4)
)
PLACES = {"fp16": 0, "fp8": 1}


def sweep(environment: Environment = records.CPU_MACHINE) -> charts.Chart:
    bench, trials = records.bench(1, workloads=LEVELS, environment=environment)
    (chart,) = charts_of_sweeps(analyse(bench, trials), PLACES)
    return chart


def test_where_the_device_is_known_the_roofline_bounds_every_point() -> None:
    chart = sweep(replace(records.CPU_MACHINE, cpu_peaks=CpuPeaks(50e9, 1e12)))
    assert "roofline at 4: " in chart.alt
    assert "what the device could do at best" in chart.caption
    with style.drawing():
        left, right = chart.draw().axes
    dashed = [line for line in left.lines if line.get_marker() == "None"]
    bound = next(line for line in dashed if len(line.get_xdata()) == 3)
    for line in left.lines:
        if line.get_marker() != "None":
            pairs = zip(line.get_ydata(), bound.get_ydata(), strict=True)
            assert all(seen <= most for seen, most in pairs)
    floor = next(
        line for line in right.lines if line.get_marker() == "None" and len(line.get_xdata()) == 3
    )
    assert min(floor.get_ydata()) > 0


def test_without_peaks_the_caption_says_that_there_is_no_roofline() -> None:
    chart = sweep()
    assert "No roofline: this device's peaks are not known." in chart.caption
    assert "roofline at" not in chart.alt


def test_the_title_names_the_most_throughput_and_its_concurrency() -> None:
    title = sweep().title
    assert title.startswith("Most output throughput seen, requests of 512+16 tokens: fp16 ")
    assert "with 4 at once" in title


@pytest.mark.parametrize(("most", "inside"), [(40.0, True), (400.0, False)])
def test_a_far_bound_is_named_at_the_edge_and_presses_nothing_flat(
    most: float, inside: bool
) -> None:
    line = charts.SweepLine("fp16", 0, (1, 2, 4), (10.0, 20.0, 30.0), (0.1, 0.1, 0.2))
    ceiling = charts.Ceiling((1, 2, 4), (most / 4, most / 2, most), (0.01, 0.01, 0.01))
    with style.drawing():
        left, _ = charts.sweep([line], ceiling).axes
    # Room for a bound within 1.6 times what was seen; else for what was seen and 15 %.
    assert left.get_ylim()[1] == pytest.approx(most * 1.15 if inside else 30.0 * 1.15)
    told = [text.get_text() for text in left.texts]
    assert any(text.startswith("▲ ") for text in told) is not inside
