"""What happened over time: the KV pool in use, the request log's own account, the queue.

Method: the first measured repeat of each variant, on the clock of its load. A title gives the
peaks of the tables, which are medians over all repeats; the caption gives those of the repeat
drawn where they differ. The gauge is the engine's; the band beside it comes from
``analysis.occupancy``. Long recordings are thinned for drawing alone: of each stretch the moment
with the fullest pool is kept, and the caption says so.

Not covered: statistics over time, which are ``analysis``' and never see the thinned values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness import units
from harness.analysis.occupancy import usable_tokens
from harness.analysis.results import Analysis, Comparison, Occupancy
from harness.record import EngineSample, TrialRecord
from harness.report import charts
from harness.report.workload_names import workload_name

#: Workloads that are drawn; the records of the others are in the results.
MAX_TIMELINES = 4
#: Moments drawn per line; more can't be seen at this width.
MAX_MOMENTS = 600


def charts_over_time(
    analysis: Analysis, trials: Sequence[TrialRecord], places: Mapping[str, int]
) -> Iterator[charts.Chart]:
    """One chart per workload that was measured: how full the pool was, who ran, who waited."""
    labels = {trial.trial_id: trial.workload_label for trial in analysis.trials}
    for number, comparison in enumerate(analysis.comparisons[:MAX_TIMELINES], 1):
        chosen = [
            trial
            for variant in comparison.variants
            if (trial := _first(trials, variant, comparison.workload_label, labels)) is not None
        ]
        lines = tuple(
            _timeline(trial, analysis.occupancy.get(trial.run.trial.trial_id), places)
            for trial in chosen
        )
        drawn = tuple(line for line in lines if line.times_s)[: charts.MAX_COLUMNS]
        if drawn:
            yield _occupancy(analysis, comparison, drawn, number, thinned=_is_thinned(chosen))


def _first(
    trials: Sequence[TrialRecord], variant: str, label: str, labels: Mapping[str, str]
) -> TrialRecord | None:
    """The first trial of a variant under a workload that was measured to its end."""
    return next(
        (
            trial
            for trial in trials
            if trial.run.status == "sealed"
            and trial.run.trial.variant == variant
            and labels.get(trial.run.trial.trial_id) == label
        ),
        None,
    )


def _occupancy(
    analysis: Analysis,
    comparison: Comparison,
    lines: Sequence[charts.Timeline],
    number: int,
    *,
    thinned: bool,
) -> charts.Chart:
    rest = sum(v not in analysis.skipped for v in comparison.variants) - len(lines)
    more = units.counted(rest, "more variant is", "more variants are")
    return charts.Chart(
        f"kv-over-time-{number}",
        _occupancy_title(workload_name(analysis, comparison), comparison, lines),
        "Above, how full the pool is: the coloured line is the engine's own gauge, the grey band "
        "what the request log says must be stored (its upper edge counts prompts that were sent "
        "and may still be waiting). Below, requests running and waiting; fewer waiting is "
        "better. A cross marks requests thrown out for lack of blocks. The usable pool is one "
        "block (the engine's null block) below the granted capacity. Drawn is the first measured "
        f"repeat of each variant.{_drawn_peaks(comparison, lines)}"
        + (
            " The request log counts a prefix that prompts share once for each of them; where it "
            "is stored once, the gauge lies below the band."
            if comparison.workload.get("shared_prefix_tokens")
            else ""
        )
        + (f" {more} in the results." if rest > 0 else "")
        + (" Thinned for drawing: the fullest moment of each stretch is kept." if thinned else ""),
        "; ".join(_timeline_alt(line) for line in lines),
        lambda: charts.occupancy(lines),
    )


def _occupancy_title(load: str, comparison: Comparison, lines: Sequence[charts.Timeline]) -> str:
    told = [
        f"{_table_peak(comparison, line)} with {line.variant}{_lost(comparison, line)}"
        for line in lines
    ]
    return f"{load}: KV use peaks at {', '.join(told)}"


def _table_peak(comparison: Comparison, line: charts.Timeline) -> str:
    """The peak that the tables give; that of the repeat drawn where they have none."""
    cell = comparison.cell("kv_usage_peak", line.variant)
    if cell is None or cell.value is None:
        return _peak(line, 0)
    return units.format_percent(cell.value, 0)


def _drawn_peaks(comparison: Comparison, lines: Sequence[charts.Timeline]) -> str:
    """What the title's figures are, and where those of the repeat drawn differ from them."""
    cells = [comparison.cell("kv_usage_peak", line.variant) for line in lines]
    if all(cell is None or len(cell.replicates) < 2 for cell in cells):
        return ""
    other = [
        f"{_peak(line)} with {line.variant}"
        for line in lines
        if _peak(line, 0) != _table_peak(comparison, line)
    ]
    here = f"; in the repeat drawn it is {', '.join(other)}" if other else ""
    return f" A peak in the title is the median over the repeats, as in the tables{here}."


def _peak(line: charts.Timeline, digits: int = 1) -> str:
    """The fullest moment as a share of the pool."""
    peak = max(line.kv_used, default=None)
    return units.format_percent(None if peak is None else peak / line.pool, digits)


def _lost(comparison: Comparison, line: charts.Timeline) -> str:
    cell = comparison.cell("preemptions", line.variant)
    return " (preempting)" if line.preempted_at_s or (cell is not None and cell.value) else ""


def _timeline_alt(line: charts.Timeline) -> str:
    return (
        f"{line.variant}, first repeat: KV in use peaks at {_peak(line)} of the pool, at most "
        f"{units.format_count(_most(line.running))} requests run and "
        f"{units.format_count(_most(line.waiting))} wait"
    )


def _most(gauge: Sequence[float | None]) -> float | None:
    """The highest reading; None where the gauge was never read."""
    return max((value for value in gauge if value is not None), default=None)


def _timeline(
    trial: TrialRecord, occupancy: Occupancy | None, places: Mapping[str, int]
) -> charts.Timeline:
    run = trial.run
    start, end = run.load_start_s or 0.0, run.load_end_s
    samples = _thin(
        [
            sample
            for sample in trial.engine_samples
            if sample.kv_cache_usage is not None
            and sample.t_s >= start
            and (end is None or sample.t_s <= end)
        ]
    )
    # What the gauge's 100 % stands for; a pool of the null block alone is none.
    pool = usable_tokens(run.server.granted) or None if run.server is not None else None
    scale = float(pool or 1)
    band = [p for p in occupancy.points if start <= p.t_s <= (end or p.t_s)] if occupancy else []
    band = band[:: max(1, len(band) // MAX_MOMENTS)] if pool else []
    return charts.Timeline(
        variant=run.trial.variant,
        place=places[run.trial.variant],
        times_s=tuple(sample.t_s - start for sample in samples),
        kv_used=tuple((sample.kv_cache_usage or 0.0) * scale for sample in samples),
        running=tuple(sample.requests_running for sample in samples),
        waiting=tuple(sample.requests_waiting for sample in samples),
        preempted_at_s=_preemptions(trial, start),
        theory_times_s=tuple(point.t_s - start for point in band),
        theory_low=tuple(point.tokens_in_flight for point in band),
        theory_high=tuple(point.tokens_sent for point in band),
        pool=scale,
        in_tokens=pool is not None,
    )


def _preemptions(trial: TrialRecord, start: float) -> tuple[float, ...]:
    """The scrapes at which the preemption counter had grown, after the load began."""
    moments: list[float] = []
    before: float | None = None
    for sample in trial.engine_samples:
        total = sample.preemptions_total
        if total is None:
            continue
        if before is not None and total > before and sample.t_s >= start:
            moments.append(sample.t_s - start)
        before = total
    return tuple(moments)


def _is_thinned(trials: Sequence[TrialRecord]) -> bool:
    return any(len(trial.engine_samples) > MAX_MOMENTS for trial in trials)


def _thin(samples: Sequence[EngineSample]) -> Sequence[EngineSample]:
    """At most MAX_MOMENTS of them: of each stretch the one with the fullest pool."""
    stride = -(-len(samples) // MAX_MOMENTS)
    if stride <= 1:
        return samples
    stretches = (samples[at : at + stride] for at in range(0, len(samples), stride))
    return [max(stretch, key=lambda sample: sample.kv_cache_usage or 0.0) for stretch in stretches]
