"""The chart of what a request's time goes to, per load and variant.

Method: the parts are those of ``analysis.phases``. Not covered: how they are found.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness import units
from harness.analysis.phases import phases_of_variant
from harness.analysis.results import Analysis, Comparison
from harness.record import TrialRecord
from harness.report import charts
from harness.report.speed_charts import left_out
from harness.report.workload_names import workload_name

#: Loads that are drawn, and rows where one variant alone was measured.
MAX_GROUPS = 6
MAX_ROWS = 14


def chart_of_phases(analysis: Analysis, trials: Sequence[TrialRecord]) -> charts.Chart | None:
    """One chart for the run, or None where no latency is known."""
    made = _groups(analysis, trials)
    if not made:
        return None
    groups = _turned(made)
    told_apart = all(each.queued_s is not None for _, rows in groups for each in rows)
    return charts.Chart(
        "request-phases",
        _title(made),
        "The mean request from send to last token; shorter is better, and the number is the time "
        "until its first token of the whole. Waiting is the engine's queue over time, shared out "
        "among the requests"
        + (
            "."
            if told_apart
            else "; where requests were preempted, or the queue was read too seldom, it can't be "
            "told from prefill, and both are one bar."
        )
        + " Means of all repeats."
        + left_out(len(analysis.comparisons) - len(made)),
        "; ".join(f"{label}: {_alt(each)}" for label, rows in groups for each in rows),
        lambda: charts.phases(groups),
    )


def _groups(
    analysis: Analysis, trials: Sequence[TrialRecord]
) -> list[tuple[str, tuple[charts.Parts, ...]]]:
    records = {trial.run.trial.trial_id: trial for trial in trials}
    one = len({t.variant for t in analysis.trials if t.status == "sealed"}) == 1
    made = []
    for comparison in analysis.comparisons[: MAX_ROWS if one else MAX_GROUPS]:
        rows = tuple(
            parts
            for variant in comparison.variants
            if (parts := _parts(analysis, comparison, variant, records)) is not None
        )
        if rows:
            made.append((workload_name(analysis, comparison), rows))
    return made


def _turned(
    made: list[tuple[str, tuple[charts.Parts, ...]]],
) -> list[tuple[str, tuple[charts.Parts, ...]]]:
    """Of a single variant the loads become the rows of one panel."""
    names = {each.row for _, rows in made for each in rows}
    if len(names) > 1 or len(made) == 1:
        return made
    rows = tuple(
        charts.Parts(label, each.before_s, each.after_s, each.queued_s) for label, (each,) in made
    )
    return [(names.pop(), rows)]


def _parts(
    analysis: Analysis,
    comparison: Comparison,
    variant: str,
    records: dict[str, TrialRecord],
) -> charts.Parts | None:
    own = (
        trial
        for trial in analysis.trials
        if trial.variant == variant and trial.workload_label == comparison.workload_label
    )
    found = phases_of_variant(own, records)
    if found is None:
        return None
    return charts.Parts(variant, found.before_first_s, found.after_first_s, found.queued_s)


def _title(groups: Sequence[tuple[str, Sequence[charts.Parts]]]) -> str:
    """The load under which the variants differ most (a lone one: waits longest), as shares."""
    label, rows = max(groups, key=lambda group: _told_most(group[1]))
    told = ", ".join(
        f"{units.format_percent(_share(each), 0)} with {each.row}" for each in rows[:3]
    )
    return f"{label}: share of a request's time before its first token: {told}"


def _told_most(rows: Sequence[charts.Parts]) -> float:
    shares = [_share(each) for each in rows]
    return max(shares) - min(shares) if len(shares) > 1 else shares[0]


def _share(parts: charts.Parts) -> float:
    whole = parts.before_s + parts.after_s
    return parts.before_s / whole if whole > 0 else 0.0


def _alt(parts: charts.Parts) -> str:
    queued = (
        "" if parts.queued_s is None else f", {units.format_duration(parts.queued_s)} of it waiting"
    )
    return (
        f"{parts.row} {units.format_duration(parts.before_s)} to the first token{queued}, "
        f"{units.format_duration(parts.after_s)} after it"
    )
