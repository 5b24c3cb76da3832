"""The charts over concurrency: loads that differ in nothing else, beside theory.

Method: three or more such loads are a sweep. The roofline drawn is the highest of the variants'
(for TTFT the lowest), so that it bounds all of them; the predicted cliff is the number of requests
of that length that a variant's pool holds. Not covered: the section on the capacity cliff, which
judges where it was seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness import units
from harness.analysis.results import Analysis, Comparison
from harness.analysis.sweep import MIN_LEVELS, sweep_key
from harness.report import charts
from harness.report.speed_charts import usable


def charts_of_sweeps(analysis: Analysis, places: Mapping[str, int]) -> Iterator[charts.Chart]:
    """A chart for every set of three or more loads that differ in concurrency alone."""
    families: dict[str, list[Comparison]] = {}
    for comparison in analysis.comparisons:
        key = sweep_key(comparison.workload)
        if key is not None:
            families.setdefault(key, []).append(comparison)
    found = [family for family in families.values() if len(_levels(family)) >= MIN_LEVELS]
    for number, family in enumerate(found, 1):
        yield _sweep(analysis, family, number, places)


def _levels(family: Sequence[Comparison]) -> set[int]:
    return {int(comparison.workload["concurrency"]) for comparison in family}


def _sweep(
    analysis: Analysis, family: Sequence[Comparison], number: int, places: Mapping[str, int]
) -> charts.Chart:
    ordered = sorted(family, key=lambda c: int(c.workload["concurrency"]))
    fits = {kv.variant: kv.concurrency_at_workload for kv in analysis.kv}
    lines = tuple(
        charts.SweepLine(
            variant=variant,
            place=places[variant],
            concurrency=tuple(int(c.workload["concurrency"]) for c in ordered),
            output_throughput=tuple(usable(c, "output_throughput", variant) for c in ordered),
            ttft_p50_s=tuple(usable(c, "ttft_s.p50", variant) for c in ordered),
            capacity_concurrency=fits.get(variant, {}).get(ordered[-1].workload_label),
        )
        for variant in ordered[0].variants
        if variant not in analysis.skipped
    )
    best = ceiling(ordered)
    return charts.Chart(
        f"sweep-{number}",
        _title(ordered, lines),
        "Left higher is better, right lower. A dotted upright line is where, by theory, a "
        "variant's pool is full: beyond it requests wait or are preempted."
        + (
            " The dash-dotted line is the roofline: what the device could do at best."
            if best.output_throughput
            else " No roofline: this device's peaks are not known."
        ),
        "; ".join(_alt(line) for line in lines) + _bound_alt(best),
        lambda: charts.sweep(lines, best),
    )


def ceiling(ordered: Sequence[Comparison]) -> charts.Ceiling:
    """The roofline of loads in order of concurrency; empty where any of them has none."""
    most = [_bound(c, "output_throughput", "at most") for c in ordered]
    least = [_bound(c, "ttft_s.p50", "at least") for c in ordered]
    return charts.Ceiling(
        concurrency=tuple(int(c.workload["concurrency"]) for c in ordered),
        output_throughput=() if None in most else tuple(v for v in most if v is not None),
        ttft_s=() if None in least else tuple(v for v in least if v is not None),
    )


def _bound(comparison: Comparison, metric: str, kind: str) -> float | None:
    row = comparison.row(metric)
    if row is None or row.theory_is != kind:
        return None
    known = [cell.theory for cell in row.cells if cell.theory is not None]
    if not known:
        return None
    return max(known) if kind == "at most" else min(known)


def _title(ordered: Sequence[Comparison], lines: Sequence[charts.SweepLine]) -> str:
    """Where each variant's throughput is highest, and under how many requests at once."""
    load = ordered[0].workload
    size = f"requests of {load['context_tokens']}+{load['output_tokens']} tokens"
    told = []
    for line in lines[:3]:
        known = [
            (rate, level)
            for level, rate in zip(line.concurrency, line.output_throughput, strict=True)
            if rate is not None
        ]
        if known:
            rate, level = max(known)
            told.append(f"{line.variant} {units.format_rate(rate, 'tok/s')} with {level} at once")
    return f"Most output throughput seen, {size}: {', '.join(told) if told else 'unknown'}"


def _alt(line: charts.SweepLine) -> str:
    points = ", ".join(
        f"{units.format_rate(rate, 'tok/s')} at {level}"
        for level, rate in zip(line.concurrency, line.output_throughput, strict=True)
    )
    full = (
        ""
        if line.capacity_concurrency is None
        else f"; pool full by theory at {units.format_count(line.capacity_concurrency, 1)}"
    )
    return f"{line.variant}: {points}{full}"


def _bound_alt(best: charts.Ceiling) -> str:
    if not best.output_throughput:
        return ""
    most = units.format_rate(best.output_throughput[-1], "tok/s")
    return f"; roofline at {best.concurrency[-1]}: {most}"
