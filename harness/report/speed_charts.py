"""The charts of what a load gave: output throughput and latencies, by load and variant.

Method: the medians of the repeats as in the tables; a figure judged invalid is drawn as withheld,
a variant that was skipped not at all. Where one variant alone was measured its loads become the
rows of one panel. Titles state what the intervals show, the most first; without an interval they
call the ratio an observation.

Not covered: how a chart is drawn (``charts.load``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from harness import units
from harness.analysis.claimable import is_claimable
from harness.analysis.results import Analysis, Cell, Comparison, Row
from harness.report import charts
from harness.report.sentence import LATENCIES
from harness.report.tables import ratio_text, value_text
from harness.report.workload_names import workload_name

#: Loads in one chart, and rows where one variant alone was measured.
MAX_GROUPS = 8
MAX_ROWS = 16
#: A finding longer than this many characters is no title.
LONGEST_TITLE = 130


def throughput(analysis: Analysis, places: Mapping[str, int]) -> charts.Chart | None:
    """Output throughput of every load; None if none is known."""
    known = [c for c in analysis.comparisons if _is_known(c, "output_throughput")]
    shown = known[: _most(analysis)]
    groups = tuple(charts.BarGroup(c.workload_label, _bars(analysis, c, places)) for c in shown)
    if not groups:
        return None
    if _is_alone(analysis) and len(groups) > 1:
        groups = (_turned_bars(analysis, shown, groups),)
    return charts.Chart(
        "output-throughput",
        _effect_title(analysis, "output throughput", {"output_throughput": "output throughput"}),
        "Longer bars are better. A bar is the median of the repeats, each dot one repeat (one "
        "server start)"
        + (
            ""
            if _is_alone(analysis)
            else "; behind a bar stands its ratio to the baseline with the 95 % interval, where "
            "three repeats allow one"
        )
        + f".{left_out(len(known) - len(shown))}{_not_drawn(analysis)}",
        "; ".join(f"{g.label}: " + ", ".join(_bar_alt(b) for b in g.bars) for g in groups),
        lambda: charts.throughput(groups),
    )


def latency(analysis: Analysis, places: Mapping[str, int]) -> charts.Chart | None:
    """TTFT and TPOT of every load; None if none is known."""
    known = [
        c for c in analysis.comparisons if _is_known(c, "ttft_s.p50") or _is_known(c, "tpot_s.p50")
    ]
    shown = known[: _most(analysis)]
    groups = tuple(
        charts.LatencyGroup(
            workload_name(analysis, c),
            _spreads(analysis, c, "ttft_s", places),
            _spreads(analysis, c, "tpot_s", places),
        )
        for c in shown
    )
    if not groups:
        return None
    if _is_alone(analysis) and len(groups) > 1:
        groups = (_turned_spreads(groups),)
    return charts.Chart(
        "latency",
        _effect_title(analysis, "latency", dict(LATENCIES)),
        "Further left is better. The filled mark is the median request (p50), the open one the "
        "request that nine in ten beat (p90); the number is the p90. Both are medians of the "
        f"repeats.{left_out(len(known) - len(shown))}{_not_drawn(analysis)}",
        "; ".join(_latency_alt(group) for group in groups),
        lambda: charts.latency(groups),
    )


def left_out(rest: int) -> str:
    """How many loads a chart leaves to the tables; nothing if none."""
    if rest <= 0:
        return ""
    return f" {units.counted(rest, 'more load is', 'more loads are')} in the tables."


def _not_drawn(analysis: Analysis) -> str:
    count = len(analysis.skipped)
    if not count:
        return ""
    return f" {units.counted(count, 'skipped variant is', 'skipped variants are')} not drawn."


def _is_alone(analysis: Analysis) -> bool:
    """Whether a single variant was run at all."""
    return len({v for c in analysis.comparisons for v in _variants(analysis, c)}) == 1


def _most(analysis: Analysis) -> int:
    return MAX_ROWS if _is_alone(analysis) else MAX_GROUPS


def _variants(analysis: Analysis, comparison: Comparison) -> list[str]:
    return [name for name in comparison.variants if name not in analysis.skipped]


def _is_known(comparison: Comparison, metric: str) -> bool:
    row = comparison.row(metric)
    return row is not None and any(cell.value is not None for cell in row.cells)


# ── bars ────────────────────────────────────────────────────────────────────────────────────


def _bars(
    analysis: Analysis, comparison: Comparison, places: Mapping[str, int]
) -> tuple[charts.Bar, ...]:
    row = comparison.row("output_throughput")
    if row is None:
        return ()
    names = _variants(analysis, comparison)
    return tuple(_bar(row, cell, places) for cell in row.cells if cell.variant in names)


def _bar(row: Row, cell: Cell, places: Mapping[str, int]) -> charts.Bar:
    withheld = cell.verdict == "invalid"
    return charts.Bar(
        variant=cell.variant,
        place=places[cell.variant],
        value=None if withheld else cell.value,
        replicates=() if withheld else tuple(value for _, value in cell.replicates),
        text=_bar_text(cell, value_text(cell.value, row.unit)),
    )


def _bar_text(cell: Cell, value: str) -> str:
    if cell.verdict == "invalid":
        return "withheld: judged invalid"
    if cell.value is None:
        return "not measured"
    if cell.is_baseline or cell.ratio is None or cell.effect == "unknown":
        return value
    return f"{value}   {ratio_text(cell.ratio, cell.interval)}"


def _turned_bars(
    analysis: Analysis, shown: Sequence[Comparison], groups: Sequence[charts.BarGroup]
) -> charts.BarGroup:
    """The loads of one variant as the rows of one panel."""
    rows = tuple(
        charts.Bar(workload_name(analysis, c), b.place, b.value, b.replicates, b.text)
        for c, group in zip(shown, groups, strict=True)
        for b in group.bars
    )
    return charts.BarGroup(groups[0].bars[0].variant, rows)


def _bar_alt(bar: charts.Bar) -> str:
    return f"{bar.variant} {bar.text}"


# ── latencies ───────────────────────────────────────────────────────────────────────────────


def _spreads(
    analysis: Analysis, comparison: Comparison, metric: str, places: Mapping[str, int]
) -> tuple[charts.Spread, ...]:
    return tuple(
        charts.Spread(
            variant,
            places[variant],
            usable(comparison, f"{metric}.p50", variant),
            usable(comparison, f"{metric}.p90", variant),
        )
        for variant in _variants(analysis, comparison)
    )


def usable(comparison: Comparison, metric: str, variant: str) -> float | None:
    """A figure that is known and not judged invalid."""
    cell = comparison.cell(metric, variant)
    return None if cell is None or cell.verdict == "invalid" else cell.value


def _turned_spreads(groups: Sequence[charts.LatencyGroup]) -> charts.LatencyGroup:
    def rows(of: str) -> tuple[charts.Spread, ...]:
        return tuple(
            charts.Spread(group.label, each.place, each.p50_s, each.p90_s)
            for group in groups
            for each in getattr(group, of)
        )

    return charts.LatencyGroup(groups[0].ttft[0].variant, rows("ttft"), rows("tpot"))


def _latency_alt(group: charts.LatencyGroup) -> str:
    def told(name: str, spreads: Sequence[charts.Spread]) -> str:
        return ", ".join(
            f"{s.variant} {name} p50 {units.format_duration(s.p50_s)} "
            f"p90 {units.format_duration(s.p90_s)}"
            for s in spreads
        )

    return f"{group.label}: {told('TTFT', group.ttft)}, {told('TPOT', group.tpot)}"


# ── titles ──────────────────────────────────────────────────────────────────────────────────


def _effect_title(analysis: Analysis, what: str, metrics: Mapping[str, str]) -> str:
    """What the intervals say about some metrics (dotted name → spoken name), the most first."""
    told: list[tuple[float, str]] = []
    effects: set[str | None] = set()
    for comparison in analysis.comparisons:
        for variant in comparison.variants[1:]:
            cells = [(m, name, comparison.cell(m, variant)) for m, name in metrics.items()]
            effects |= {cell.effect for _, _, cell in cells if cell is not None}
            shown = [
                (abs(math.log(cell.ratio)), f"{name} is {ratio_text(cell.ratio, cell.interval)}")
                for metric, name, cell in cells
                if cell is not None
                and cell.ratio
                and is_claimable(analysis, comparison, metric, variant)
            ]
            if shown:
                clauses = units.listed([clause for _, clause in shown])
                text = f"{workload_name(analysis, comparison)}: {variant}'s {clauses}"
                told.append((max(size for size, _ in shown), text))
    if not told:
        return _no_effect_title(analysis, what, next(iter(metrics)), effects)
    told.sort(key=lambda pair: -pair[0])
    return _joined([text for _, text in told]) + f", against {analysis.baseline}"


def _joined(clauses: Sequence[str]) -> str:
    """The first clauses that make a title of two lines, and how many more there are."""
    count = 2 if len("; ".join(clauses[:2])) <= LONGEST_TITLE else 1
    rest = len(clauses) - count
    return "; ".join(clauses[:count]) + (f" (and {rest} more)" if rest > 0 else "")


def _no_effect_title(analysis: Analysis, what: str, metric: str, effects: set[str | None]) -> str:
    if "no difference shown" in effects:
        # A tail that differs from few requests is left to the tables.
        kind = "median " if effects & {"higher", "lower"} else ""
        return f"No difference in {kind}{what} is shown"
    label = f"{what[:1].upper()}{what[1:]}"
    if _is_alone(analysis):
        return _range_title(analysis, label, metric)
    seen = [
        (abs(math.log(cell.ratio)), comparison, cell)
        for comparison in analysis.comparisons
        for variant in comparison.variants[1:]
        if (cell := comparison.cell(metric, variant)) is not None
        and cell.ratio
        and cell.verdict != "invalid"
        and cell.effect == "no interval"
    ]
    if not seen:
        return f"{label}, observed without intervals"
    _, comparison, cell = max(seen, key=lambda each: each[0])
    of = f"{LATENCIES[0][1]} " if metric == LATENCIES[0][0] else ""
    return (
        f"{label}, observed without intervals: {workload_name(analysis, comparison)}, "
        f"{cell.variant} {of}{ratio_text(cell.ratio, cell.interval)} {analysis.baseline}'s"
    )


def _range_title(analysis: Analysis, label: str, metric: str) -> str:
    """``Output throughput of fp16: 39.7 tok/s to 196.8 tok/s over 13 loads``."""
    rows = [row for c in analysis.comparisons if (row := c.row(metric)) is not None]
    found = [
        (cell.value, row.unit)
        for row in rows
        for cell in row.cells
        if cell.value is not None and cell.verdict != "invalid"
    ]
    who = f"{label} of {analysis.baseline}"
    if not found:
        return f"{who}, by load"
    texts = [value_text(value, unit) for value, unit in (min(found), max(found))]
    of = f" ({LATENCIES[0][1]})" if metric == LATENCIES[0][0] else ""
    if len(found) == 1 or texts[0] == texts[1]:
        return f"{who}{of}: {texts[0]}"
    return f"{who}{of}: {texts[0]} to {texts[1]} over {len(found)} loads"
