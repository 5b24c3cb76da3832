"""What the mean request's time goes to: waiting for a place, prefill, decode.

Method: up to the first token is the mean TTFT, after it mean E2EL − mean TTFT. Waiting is read off
the engine's queue: over a load that begins and ends empty, ∫ requests waiting dt is the sum of
their waits, whatever their order (Little's law, exactly, since every request is inside the
window), so its share per request is the mean wait. Where requests were preempted the queue also
holds those that have had tokens, and the wait before the first one can't be told; nor where the
gauge was read too seldom. A variant's parts are means over its repeats, where tables give medians:
means add up to the mean of the whole, medians don't. A trial whose latencies were judged invalid
is left out, and waiting is told only where every repeat tells it.

Not covered: single requests; the client's own queue (``send lag``); what the engine does in a step
that serves prompts and decodes together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from harness.analysis.metrics import phase
from harness.analysis.results import Summary, TrialAnalysis
from harness.analysis.series import series
from harness.record import TrialRecord
from harness.units import Seconds

#: Fewer readings of the queue than these miss what happens between them.
MIN_READINGS = 20


@dataclass(frozen=True, slots=True)
class Phases:
    """Means over the completed requests; ``queued_s`` is None where it can't be told."""

    before_first_s: Seconds
    after_first_s: Seconds
    queued_s: Seconds | None


def phases(trial: TrialRecord, summary: Summary) -> Phases | None:
    """Split the mean request of a finished trial; None if its latencies are unknown."""
    first, last = summary.ttft_s.mean, summary.e2el_s.mean
    if first is None or last is None:
        return None
    return Phases(first, max(last - first, 0.0), _queued(trial, summary, first))


def phases_of_variant(
    trials: Iterable[TrialAnalysis], records: Mapping[str, TrialRecord]
) -> Phases | None:
    """The mean of one variant's trials under one workload; None where none of them tells.

    ``records`` are by trial id.
    """
    made = (_of_trial(trial, records.get(trial.trial_id)) for trial in trials)
    found = [each for each in made if each is not None]
    if not found:
        return None
    waits = [each.queued_s for each in found if each.queued_s is not None]
    return Phases(
        before_first_s=fmean(each.before_first_s for each in found),
        after_first_s=fmean(each.after_first_s for each in found),
        queued_s=fmean(waits) if len(waits) == len(found) else None,
    )


def _of_trial(trial: TrialAnalysis, record: TrialRecord | None) -> Phases | None:
    spoiled = any(
        verdict.verdict == "invalid"
        and verdict.field.partition(".")[0] in ("*", "ttft_s", "e2el_s")
        for verdict in trial.verdicts
    )
    if trial.status != "sealed" or spoiled or trial.summary is None or record is None:
        return None
    return phases(record, trial.summary)


def _queued(trial: TrialRecord, summary: Summary, most: Seconds) -> Seconds | None:
    span = phase(trial.run)
    if span is None or summary.preemptions != 0 or summary.failed or not summary.completed:
        return None
    waiting = series(trial.engine_samples, lambda sample: sample.requests_waiting)
    if len(waiting.between(*span)) < MIN_READINGS:
        return None
    total = waiting.integral(*span)
    return None if total is None else min(total / summary.completed, most)
