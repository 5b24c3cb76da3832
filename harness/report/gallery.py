"""Which charts a run gets: the values of each, the finding in its title, how to read it.

Method: every chart is made from the analysis (and the stored samples, for what happened over
time); a chart whose values are unknown is left out. Titles are written from the same values as
the bars, by the same rules as the opening sentences: no difference is claimed without an
interval.

Not covered: the values of what a load gave (``speed_charts``, ``phases``, ``latency_ecdf``,
``sweeps``) and of what happened over time (``timeline``), how a chart is drawn (``charts``) or
written (``style``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness import units
from harness.analysis.cliff import cliffs
from harness.analysis.headline import request_length
from harness.analysis.results import Analysis, Comparison, Ledger, LedgerLine
from harness.record import TrialRecord
from harness.report import charts, latency_ecdf, phases, speed_charts, sweeps, timeline
from harness.report.places import places
from harness.report.plate import Plate, plate
from harness.report.workload_names import workload_name
from harness.units import Bytes

#: Workloads in one bar chart.
MAX_GROUPS = 8
#: An error that is written as 0.0 %.
_EXACT = 0.0005


METERS = {
    "nvml": "device memory (NVML)",
    "workers": "private memory of the engine's workers, less what they held before the weights,",
    "rss": "resident memory of the server (RSS)",
}


def plates(analysis: Analysis, trials: Sequence[TrialRecord], folder: Path) -> tuple[Plate, ...]:
    """Draw every chart of a run and write its files into ``folder``."""
    return tuple(plate(chart, folder) for chart in charts_of(analysis, trials))


def charts_of(analysis: Analysis, trials: Sequence[TrialRecord]) -> Iterator[charts.Chart]:
    """The charts that a run gets, in the order of the page."""
    place = places(analysis)
    for made in (
        _memory(analysis, place),
        _in_use(analysis, place),
        _ledger(analysis),
        speed_charts.throughput(analysis, place),
        speed_charts.latency(analysis, place),
        phases.chart_of_phases(analysis, trials),
        *latency_ecdf.ecdf_charts(analysis, trials, place),
        *(() if _cliff_tells(analysis) else sweeps.charts_of_sweeps(analysis, place)),
        *timeline.charts_over_time(analysis, trials, place),
    ):
        if made is not None:
            yield made


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
        f"{_memory_left(points)} Right: dashed outlines are the "
        "prediction, filled bars what the granted pool works out to; shorter bars hold more "
        f"tokens in the same memory.{_by_requests(analysis)}",
        "; ".join(_memory_alt(p) for p in points),
        lambda: charts.memory(points),
    )


def _memory_left(points: Sequence[charts.MemoryPoint]) -> str:
    """How to read the left panel: marks about a line, or bars where there are too many marks."""
    known = [p for p in points if p.predicted_tokens is not None or p.granted_tokens is not None]
    if len(known) > charts.MAX_MARKS:
        return "Left: dashed outlines are what the formula predicts, filled bars what was granted."
    return (
        "Left: each mark is one variant; on the dashed line the engine granted what the formula "
        "predicts from the model's config.json, below it less."
    )


def _by_requests(analysis: Analysis) -> str:
    """What the engine's tokens are where layers free blocks."""
    length = request_length(analysis.kv)
    if length is None:
        return ""
    return (
        f" Tokens are as the engine prints them, requests that fit × {units.format_count(length)}: "
        "where layers free blocks, more than the pool ever stores."
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
    names = {c.workload_label: workload_name(analysis, c) for c in analysis.comparisons}
    return charts.Chart(
        "kv-in-use",
        _in_use_title(
            [(names[label], pairs) for label, pairs in groups],
            bound=request_length(analysis.kv) is not None,
        ),
        "Dashed: the whole blocks that as many full-length requests hold as the load keeps in "
        "flight and the pool takes. Filled: the engine's gauge at its peak. The nearer the two, "
        "the better the theory; the shorter, the less memory the same load needs."
        + speed_charts.left_out(len(analysis.comparisons) - MAX_GROUPS),
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


def _in_use_title(
    groups: Sequence[tuple[str, Sequence[charts.Pair]]], *, bound: bool = False
) -> str:
    """In how many cases theory is right, and where it is off most.

    Where layers free blocks theory is a ``bound``: whole requests hold no more than that.
    """
    errors = [
        (pair.found / pair.predicted - 1.0, pair, load)
        for load, pairs in groups
        for pair in pairs
        if pair.predicted and pair.found is not None
    ]
    if not errors:
        return "Peak KV in use"
    if bound:
        within = sum(error < _EXACT for error, _, _ in errors)
        return f"Peak KV in use stays within theory's bound in {within} of {len(errors)} cases"
    right = sum(abs(error) < _EXACT for error, _, _ in errors)
    if right == len(errors):
        return "Peak KV in use is what theory says, in every case"
    worst, pair, load = max(errors, key=lambda each: abs(each[0]))
    most = f"{pair.label} is off most, by {units.format_percent(abs(worst))} ({load})"
    return f"Peak KV in use is what theory says in {right} of {len(errors)} cases; {most}"


def _pair_alt(pair: charts.Pair) -> str:
    theory, found = units.format_bytes(pair.predicted), units.format_bytes(pair.found)
    return f"{pair.label} {theory} by theory, {found} measured"


def _ledger(analysis: Analysis) -> charts.Chart | None:
    stacks = tuple(
        charts.Stack(
            variant=ledger.variant,
            parts=tuple((line.name, _size(line)) for line in ledger.lines),
            remainder_bytes=ledger.remainder_bytes,
            total_bytes=ledger.loaded_bytes - ledger.before_bytes,
        )
        for ledger in analysis.ledgers
        if ledger.loaded_bytes is not None
        and ledger.before_bytes is not None
        and _itemised(ledger) >= 2
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
    return sum(bool(_size(line)) for line in ledger.lines)


def _size(line: LedgerLine) -> Bytes | None:
    """What the engine granted, which may be nothing; the prediction only where it says nothing."""
    return line.predicted_bytes if line.granted_bytes is None else line.granted_bytes


def _stack_alt(stack: charts.Stack) -> str:
    parts = ", ".join(
        f"{charts.PART_NAMES.get(name, name)} {units.format_bytes(size)}"
        for name, size in stack.parts
    )
    rest = units.format_bytes(stack.remainder_bytes)
    total = units.format_bytes(stack.total_bytes)
    return f"{stack.variant}: {parts}, not itemised {rest}, loaded {total}"


def _cliff_tells(analysis: Analysis) -> bool:
    """Whether the section on the capacity cliff draws the same sweep of a single variant."""
    return len(analysis.kv) == 1 and bool(cliffs(analysis))
