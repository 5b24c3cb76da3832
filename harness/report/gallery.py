"""Which charts a run gets: the values of each, the finding in its title, how to read it.

Method: every chart is made from the analysis (and the stored samples, for what happened over
time); a chart whose values are unknown is left out. Titles are written from the same values as
the bars, by the same rules as the opening sentences: no difference is claimed without an
interval.

Not covered: what happened over time (``timeline``), how a chart is drawn (``charts``) or written
(``style``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import units
from harness.analysis.cliff import cliffs
from harness.analysis.results import Analysis, Cell, Comparison, Ledger
from harness.record import TrialRecord
from harness.report import charts, spread, style, timeline
from harness.report.sentence import LATENCIES, listed, short_label
from harness.report.tables import ratio_text, value_text

#: Workloads in one bar chart.
MAX_GROUPS = 8
#: A finding longer than this many characters is no title.
LONGEST_TITLE = 130


@dataclass(frozen=True, slots=True)
class Plate:
    """A chart that was drawn and written."""

    picture: style.Picture
    caption: str
    alt: str


METERS = {
    "nvml": "device memory (NVML)",
    "workers": "private memory of the engine's workers, less what they held before the weights,",
    "rss": "resident memory of the server (RSS)",
}


def plates(analysis: Analysis, trials: Sequence[TrialRecord], folder: Path) -> tuple[Plate, ...]:
    """Draw every chart of a run and write its files into ``folder``."""
    drawn: list[Plate] = []
    for chart in charts_of(analysis, trials):
        with style.drawing():
            picture = style.write(chart.draw(), chart.name, chart.title, folder)
        drawn.append(Plate(picture, chart.caption, chart.alt))
    return tuple(drawn)


def charts_of(analysis: Analysis, trials: Sequence[TrialRecord]) -> Iterator[charts.Chart]:
    """The charts that a run gets, in the order of the page."""
    places = _places(analysis)
    for made in (
        _memory(analysis, places),
        _in_use(analysis, places),
        _ledger(analysis),
        _throughput(analysis, places),
        _latency(analysis, places),
        *spread.charts_of_spread(analysis, trials, places),
        *(() if _cliff_tells(analysis) else _sweeps(analysis, places)),
        *timeline.charts_over_time(analysis, trials, places),
    ):
        if made is not None:
            yield made


def _places(analysis: Analysis) -> Mapping[str, int]:
    """Each variant's place, hence its colour and marker; the baseline comes first."""
    names = dict.fromkeys(
        [analysis.baseline, *(kv.variant for kv in analysis.kv)]
        + [t.variant for t in analysis.trials]
    )
    return {name: place for place, name in enumerate(names)}


# ── memory ──────────────────────────────────────────────────────────────────────────────────


def _memory(analysis: Analysis, places: Mapping[str, int]) -> charts.Chart | None:
    points = tuple(
        charts.MemoryPoint(
            variant=kv.variant,
            place=places[kv.variant],
            predicted_tokens=kv.predicted.kv_cache_tokens if kv.predicted else None,
            granted_tokens=kv.granted.kv_cache_tokens,
            predicted_bytes_per_token=kv.predicted.kv_bytes_per_token if kv.predicted else None,
            granted_bytes_per_token=kv.granted.kv_bytes_per_token,
        )
        for kv in analysis.kv
    )
    known = any(p.granted_tokens is not None or p.predicted_tokens is not None for p in points)
    if not known or not analysis.headline.trials_sealed:
        return None
    return charts.Chart(
        "kv-memory",
        _memory_title(analysis),
        "Left: each mark is one variant; on the dashed line the engine granted what the formula "
        "predicts from the model's config.json, below it less. Right: dashed outlines are the "
        "prediction, filled bars what the granted pool works out to; shorter bars hold more "
        "tokens in the same memory.",
        "; ".join(_memory_alt(p) for p in points),
        lambda: charts.memory(points),
    )


def _memory_title(analysis: Analysis) -> str:
    errors = [kv.error_fraction for kv in analysis.kv if kv.error_fraction is not None]
    if not errors:
        return "Granted KV memory; theory has no prediction to hold it against"
    if analysis.headline.theory_agrees:
        who = "Both variants get" if len(errors) == 2 else "Every variant gets"
        whole = who if len(errors) > 1 else f"{analysis.kv[0].variant} gets"
        return f"{whole} exactly the KV capacity that theory predicts, to the block"
    worst = max(errors, key=abs)
    return f"Granted KV capacity is off the prediction by up to {units.format_percent(abs(worst))}"


def _memory_alt(point: charts.MemoryPoint) -> str:
    return (
        f"{point.variant}: predicted {units.format_count(point.predicted_tokens)} tokens, "
        f"granted {units.format_count(point.granted_tokens)}, "
        f"{units.format_count(point.granted_bytes_per_token)} bytes per token"
    )


def _in_use(analysis: Analysis, places: Mapping[str, int]) -> charts.Chart | None:
    groups = tuple(
        (comparison.workload_label, pairs)
        for comparison in analysis.comparisons[:MAX_GROUPS]
        if (pairs := _pairs(comparison, "kv_in_use_peak_bytes", places))
    )
    if not groups:
        return None
    return charts.Chart(
        "kv-in-use",
        _in_use_title([pair for _, pairs in groups for pair in pairs]),
        "Dashed: the whole blocks that as many full-length requests hold as the load keeps in "
        "flight and the pool takes. Filled: the engine's gauge at its peak. The nearer the two, "
        "the better the theory; the shorter, the less memory the same load needs."
        + _left_out(analysis, MAX_GROUPS),
        "; ".join(f"{label}: {_pair_alt(pair)}" for label, pairs in groups for pair in pairs),
        lambda: charts.in_use(groups),
    )


def _pairs(
    comparison: Comparison, metric: str, places: Mapping[str, int]
) -> tuple[charts.Pair, ...]:
    row = comparison.row(metric)
    return tuple(
        charts.Pair(cell.variant, places[cell.variant], cell.theory, cell.value)
        for cell in (row.cells if row else ())
        if cell.value is not None and cell.theory is not None and cell.verdict != "invalid"
    )


def _in_use_title(pairs: Sequence[charts.Pair]) -> str:
    errors = [abs(p.found / p.predicted - 1.0) for p in pairs if p.predicted and p.found]
    worst = max(errors, default=None)
    if worst is not None and worst < 0.0005:
        return "Peak KV in use is what theory says, in every case"
    return f"Peak KV in use is within {units.format_percent(worst)} of theory"


def _pair_alt(pair: charts.Pair) -> str:
    theory, found = units.format_bytes(pair.predicted), units.format_bytes(pair.found)
    return f"{pair.variant} {theory} by theory, {found} measured"


def _ledger(analysis: Analysis) -> charts.Chart | None:
    stacks = tuple(
        charts.Stack(
            variant=ledger.variant,
            parts=tuple(
                (line.name, line.granted_bytes or line.predicted_bytes) for line in ledger.lines
            ),
            remainder_bytes=ledger.remainder_bytes,
            total_bytes=ledger.loaded_bytes - (ledger.before_bytes or 0),
        )
        for ledger in analysis.ledgers
        if ledger.loaded_bytes is not None and _itemised(ledger) >= 2
    )
    if not stacks:
        return None
    meter = analysis.ledgers[0].meter
    seen = METERS.get(meter or "", "memory of the server")
    first = stacks[0]
    pool = dict(first.parts).get("kv_pool")
    title = (
        f"Of {units.format_bytes(first.total_bytes)} with {first.variant} the KV pool takes "
        f"{units.format_bytes(pool)}; {units.format_bytes(first.remainder_bytes)} is not itemised"
    )
    return charts.Chart(
        "memory-ledger",
        title,
        f"Where the {seen} lies once the server is healthy, before any load. The hatched end is "
        "what neither the engine nor theory itemises (interpreter, libraries, buffers): the "
        "smaller, the better understood.",
        "; ".join(_stack_alt(stack) for stack in stacks),
        lambda: charts.ledger(stacks),
    )


def _itemised(ledger: Ledger) -> int:
    """How many uses of memory are known; a single one would make a picture of the unknown."""
    return sum(bool(line.granted_bytes or line.predicted_bytes) for line in ledger.lines)


def _stack_alt(stack: charts.Stack) -> str:
    parts = ", ".join(
        f"{charts.PART_NAMES.get(name, name)} {units.format_bytes(size)}"
        for name, size in stack.parts
    )
    rest = units.format_bytes(stack.remainder_bytes)
    total = units.format_bytes(stack.total_bytes)
    return f"{stack.variant}: {parts}, not itemised {rest}, loaded {total}"


# ── throughput and latency ──────────────────────────────────────────────────────────────────


def _throughput(analysis: Analysis, places: Mapping[str, int]) -> charts.Chart | None:
    groups = tuple(
        charts.BarGroup(c.workload_label, _bars(c, "output_throughput", places))
        for c in analysis.comparisons[:MAX_GROUPS]
        if _known(c, "output_throughput")
    )
    if not groups:
        return None
    return charts.Chart(
        "output-throughput",
        _effect_title(analysis, "output throughput", {"output_throughput": "output throughput"}),
        "Longer bars are better. A bar is the median of the repeats, each dot one repeat (one "
        "server start); behind a bar stands its ratio to the baseline with the 95 % interval, "
        f"where three repeats allow one.{_left_out(analysis, MAX_GROUPS)}",
        "; ".join(f"{g.label}: " + ", ".join(_bar_alt(b) for b in g.bars) for g in groups),
        lambda: charts.throughput(groups),
    )


def _bar_alt(bar: charts.Bar) -> str:
    return f"{bar.variant} {bar.text}"


def _left_out(analysis: Analysis, most: int) -> str:
    rest = len(analysis.comparisons) - most
    return f" {rest} more workloads are in the tables." if rest > 0 else ""


def _known(comparison: Comparison, metric: str) -> bool:
    row = comparison.row(metric)
    return row is not None and any(cell.value is not None for cell in row.cells)


def _bars(comparison: Comparison, metric: str, places: Mapping[str, int]) -> tuple[charts.Bar, ...]:
    row = comparison.row(metric)
    if row is None:
        return ()
    return tuple(
        charts.Bar(
            variant=cell.variant,
            place=places[cell.variant],
            value=None if cell.verdict == "invalid" else cell.value,
            replicates=()
            if cell.verdict == "invalid"
            else tuple(value for _, value in cell.replicates),
            text=_bar_text(cell, value_text(cell.value, row.unit)),
        )
        for cell in row.cells
    )


def _bar_text(cell: Cell, value: str) -> str:
    if cell.verdict == "invalid":
        return "withheld: judged invalid"
    if cell.value is None:
        return "not measured"
    if cell.is_baseline or cell.ratio is None or cell.effect == "unknown":
        return value
    return f"{value}   {ratio_text(cell.ratio, cell.interval)}"


def _effect_title(analysis: Analysis, what: str, metrics: Mapping[str, str]) -> str:
    """What the intervals say about some metrics (dotted name → spoken name), the most first."""
    told: list[tuple[float, str]] = []
    effects: set[str | None] = set()
    for comparison in analysis.comparisons:
        for variant in comparison.variants[1:]:
            cells = [(name, _cell(comparison, metric, variant)) for metric, name in metrics.items()]
            effects |= {cell.effect for _, cell in cells if cell is not None}
            shown = [
                (abs(math.log(cell.ratio)), f"{name} is {ratio_text(cell.ratio, cell.interval)}")
                for name, cell in cells
                if cell is not None and cell.effect in ("higher", "lower") and cell.ratio
            ]
            if shown:
                clauses = listed([clause for _, clause in shown])
                text = f"{short_label(comparison)}: {variant}'s {clauses}"
                told.append((max(size for size, _ in shown), text))
    if not told:
        return _no_effect_title(analysis, what, effects)
    told.sort(key=lambda pair: -pair[0])
    return _joined([text for _, text in told]) + f", against {analysis.baseline}"


def _joined(clauses: Sequence[str]) -> str:
    """The first clauses that make a title of two lines, and how many more there are."""
    count = 2 if len("; ".join(clauses[:2])) <= LONGEST_TITLE else 1
    rest = len(clauses) - count
    return "; ".join(clauses[:count]) + (f" (and {rest} more)" if rest > 0 else "")


def _cell(comparison: Comparison, metric: str, variant: str) -> Cell | None:
    row = comparison.row(metric)
    return row.cell(variant) if row else None


def _no_effect_title(analysis: Analysis, what: str, effects: set[str | None]) -> str:
    if "no difference shown" in effects:
        return f"No difference in {what} is shown"
    if not effects:
        return f"{what[:1].upper()}{what[1:]} of {analysis.baseline}, by workload"
    return f"{what[:1].upper()}{what[1:]}, observed without intervals"


def _latency(analysis: Analysis, places: Mapping[str, int]) -> charts.Chart | None:
    groups = tuple(
        charts.LatencyGroup(
            short_label(c),
            _spreads(c, "ttft_s", places),
            _spreads(c, "tpot_s", places),
        )
        for c in analysis.comparisons[:MAX_GROUPS]
        if _known(c, "ttft_s.p50") or _known(c, "tpot_s.p50")
    )
    if not groups:
        return None
    return charts.Chart(
        "latency",
        _effect_title(analysis, "latency", dict(LATENCIES)),
        "Further left is better. The filled mark is the median request (p50), the open one the "
        "request that nine in ten beat (p90); the number is the p90. Both are medians of the "
        f"repeats.{_left_out(analysis, MAX_GROUPS)}",
        "; ".join(_latency_alt(group) for group in groups),
        lambda: charts.latency(groups),
    )


def _latency_alt(group: charts.LatencyGroup) -> str:
    def told(name: str, spreads: Sequence[charts.Spread]) -> str:
        return ", ".join(
            f"{s.variant} {name} p50 {units.format_duration(s.p50_s)} "
            f"p90 {units.format_duration(s.p90_s)}"
            for s in spreads
        )

    return f"{group.label}: {told('TTFT', group.ttft)}, {told('TPOT', group.tpot)}"


def _spreads(
    comparison: Comparison, metric: str, places: Mapping[str, int]
) -> tuple[charts.Spread, ...]:
    return tuple(
        charts.Spread(
            variant,
            places[variant],
            _usable(comparison, f"{metric}.p50", variant),
            _usable(comparison, f"{metric}.p90", variant),
        )
        for variant in comparison.variants
    )


def _usable(comparison: Comparison, metric: str, variant: str) -> float | None:
    cell = _cell(comparison, metric, variant)
    return None if cell is None or cell.verdict == "invalid" else cell.value


# ── over concurrency ────────────────────────────────────────────────────────────────────────


def _cliff_tells(analysis: Analysis) -> bool:
    """Whether the section on the capacity cliff draws the same sweep of a single variant."""
    return len(analysis.kv) == 1 and bool(cliffs(analysis))


def _sweeps(analysis: Analysis, places: Mapping[str, int]) -> Iterator[charts.Chart]:
    """A chart for every set of three or more workloads that differ in concurrency alone."""
    families: dict[str, list[Comparison]] = {}
    for comparison in analysis.comparisons:
        if comparison.workload.get("concurrency") is not None:
            same = {
                key: value
                for key, value in comparison.workload.items()
                if key not in ("concurrency", "num_prompts", "name", "warmup_requests")
            }
            families.setdefault(repr(sorted(same.items())), []).append(comparison)
    sweeps = [family for family in families.values() if len(_levels(family)) >= 3]
    for number, family in enumerate(sweeps, 1):
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
            output_throughput=tuple(_usable(c, "output_throughput", variant) for c in ordered),
            ttft_p50_s=tuple(_usable(c, "ttft_s.p50", variant) for c in ordered),
            capacity_concurrency=fits.get(variant, {}).get(ordered[-1].workload_label),
        )
        for variant in ordered[0].variants
    )
    size = f"{ordered[0].workload['context_tokens']}+{ordered[0].workload['output_tokens']}"
    return charts.Chart(
        f"sweep-{number}",
        f"Throughput and TTFT as concurrency grows, requests of {size} tokens",
        "Left higher is better, right lower. A dotted vertical line is where, by theory, a "
        "variant's pool is full: beyond it requests wait or are preempted.",
        "; ".join(_sweep_alt(line) for line in lines),
        lambda: charts.sweep(lines),
    )


def _sweep_alt(line: charts.SweepLine) -> str:
    points = ", ".join(
        f"{units.format_rate(rate, 'tok/s')} at {level}"
        for level, rate in zip(line.concurrency, line.output_throughput, strict=True)
    )
    return f"{line.variant}: {points}"
