"""How latencies spread: the cumulative distribution of TTFT, TPOT and ITL, variant by variant.

Method: the completed requests of all measured repeats of a variant are pooled (ITL: the gaps
between their chunks); the curve is ``latency.ecdf``'s, in at most MAX_STEPS steps.

Not covered: intervals. Requests of one server start are not independent of one another, so the
curves are for looking; what differs is decided by the repeats (``analysis.stats``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness import units
from harness.analysis import latency
from harness.analysis.latency import Values
from harness.analysis.metrics import measured
from harness.analysis.results import Analysis, Comparison
from harness.record import RequestRecord, TrialRecord
from harness.report import charts
from harness.report.speed_charts import usable
from harness.report.workload_names import workload_name

#: Workloads that are drawn.
MAX_SPREADS = 3
#: Lines that can be told apart in one panel.
MAX_LINES = 6
#: Corners of one curve; more can't be seen at this width.
MAX_STEPS = 201


def ecdf_charts(
    analysis: Analysis, trials: Sequence[TrialRecord], places: Mapping[str, int]
) -> Iterator[charts.Chart]:
    """One chart per workload that was measured."""
    labels = {trial.trial_id: trial.workload_label for trial in analysis.trials}
    for number, comparison in enumerate(analysis.comparisons[:MAX_SPREADS], 1):
        pooled = {
            variant: requests
            for variant in comparison.variants[:MAX_LINES]
            if (requests := _requests(trials, variant, comparison.workload_label, labels))
        }
        if pooled:
            chart = _chart(analysis, comparison, pooled, number, places)
            if chart is not None:
                yield chart


def _requests(
    trials: Sequence[TrialRecord], variant: str, label: str, labels: Mapping[str, str]
) -> list[RequestRecord]:
    return [
        request
        for trial in trials
        if trial.run.status == "sealed"
        and trial.run.trial.variant == variant
        and labels.get(trial.run.trial.trial_id) == label
        for request in measured(trial)
        if latency.is_completed(request)
    ]


def _chart(
    analysis: Analysis,
    comparison: Comparison,
    pooled: Mapping[str, list[RequestRecord]],
    number: int,
    places: Mapping[str, int],
) -> charts.Chart | None:
    made = [
        (name, tuple(steps(v, places[v], values) for v, values in of.items() if values.size))
        for name, of in _panels(pooled).items()
    ]
    # A latency that no request has (one token has no TPOT) gets no panel.
    panels = [panel for panel in made if panel[1]]
    if not panels:
        return None
    return charts.Chart(
        f"latency-spread-{number}",
        _title(analysis, comparison),
        "A curve further left is better: it passes 50 % at the median and 90 % at the p90. "
        "Completed requests of all repeats of a variant together; a step is many requests that "
        "waited equally long." + _thinned(panels) + _more(analysis, comparison),
        "; ".join(_alt(name, line) for name, lines in panels for line in lines),
        lambda: charts.ecdf(panels),
    )


def _more(analysis: Analysis, comparison: Comparison) -> str:
    rest = sum(name not in analysis.skipped for name in comparison.variants) - MAX_LINES
    more = units.counted(rest, "more variant", "more variants")
    return f" The figures of {more} are in the tables." if rest > 0 else ""


def _thinned(panels: Sequence[tuple[str, Sequence[charts.Steps]]]) -> str:
    most = max((line.count for _, lines in panels for line in lines), default=0)
    if most <= MAX_STEPS:
        return ""
    return (
        f" Drawn through {MAX_STEPS} evenly spaced quantiles of up to {units.format_count(most)} "
        "values; both ends are true."
    )


def _panels(pooled: Mapping[str, list[RequestRecord]]) -> dict[str, dict[str, Values]]:
    return {
        "TTFT": {v: latency.known(map(latency.ttft, requests)) for v, requests in pooled.items()},
        "TPOT": {v: latency.known(map(latency.tpot, requests)) for v, requests in pooled.items()},
        "ITL": {v: latency.pooled_itl(requests) for v, requests in pooled.items()},
    }


def steps(variant: str, place: int, values: Values) -> charts.Steps:
    """The cumulative distribution of ``values`` (seconds), at most MAX_STEPS corners."""
    at, shares = latency.ecdf(values, MAX_STEPS)
    return charts.Steps(
        variant, place, tuple(at.tolist()), tuple(shares.tolist()), int(values.size)
    )


def _title(analysis: Analysis, comparison: Comparison) -> str:
    """The 90th percentile as the tables have it, so that one page tells one number."""
    known = [
        (variant, value)
        for variant in comparison.variants
        if (value := usable(comparison, "ttft_s.p90", variant)) is not None
    ]
    load = workload_name(analysis, comparison)
    if not known:
        return f"{load}: how the latencies of single requests spread"
    told = [f"{units.format_duration(value)} with {variant}" for variant, value in known[:3]]
    return f"{load}: nine in ten first tokens are there within {', '.join(told)}"


def _alt(name: str, line: charts.Steps) -> str:
    low, high = (units.format_duration(line.values_s[at]) for at in (0, -1))
    return f"{name} of {line.variant}: {units.format_count(line.count)} values, {low} to {high}"
