"""How much reserved KV memory holds nothing: whole-length reservations beside pages.

Method: at every scrape the request log tells how many tokens are stored, and the engine how many
requests run and how many blocks are taken. Where whole lengths are reserved, a running request
holds ``max_model_len`` tokens of the pool, whatever it uses; where blocks are, it holds its
blocks. Waste is what is held and not stored, as a share of what is held and of the pool; all are
time-weighted means over the measured phase. What a request has stored is known from its first
chunk on, so one in prefill counts as running and empty; on short prompts that is a small part.

The prediction stands beside it, from the planned lengths alone (``theory.reservation``). Not
covered: the time in which a prompt is computed, and reservations that grow in steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis.metrics import measured, phase
from harness.analysis.occupancy import usable_tokens
from harness.analysis.results import Analysis, TrialAnalysis
from harness.analysis.series import Series, series
from harness.record import TrialRecord
from harness.theory.reservation import stored_on_average
from harness.units import Fraction, Tokens


@dataclass(frozen=True, slots=True)
class Waste:
    """One trial's reservations, time-weighted means over its measured phase.

    ``reserves`` says what a request holds: its ``blocks``, or its ``whole length``.
    ``stored_predicted_tokens`` is what a request holds on average by its planned lengths.
    """

    variant: str
    stamp: str
    trial_id: str
    reserves: str
    running_mean: float
    running_peak: float
    stored_tokens: float
    held_tokens: float
    pool_tokens: Tokens
    max_model_len: Tokens
    stored_predicted_tokens: float

    @property
    def of_held(self) -> Fraction:
        """Share of what is held that stores nothing."""
        return 1.0 - self.stored_tokens / self.held_tokens

    @property
    def of_pool(self) -> Fraction:
        """Share of the whole pool that is held and stores nothing."""
        return (self.held_tokens - self.stored_tokens) / self.pool_tokens

    @property
    def of_held_predicted(self) -> Fraction | None:
        """The same share by theory; None for blocks, whose waste is at most one per request."""
        if self.reserves == "blocks":
            return None
        return 1.0 - self.stored_predicted_tokens / self.max_model_len


@dataclass(frozen=True, slots=True)
class Reservation:
    """One variant's reservations: means over its trials, which add up where medians would not."""

    variant: str
    stamp: str
    reserves: str
    running_mean: float
    of_held: Fraction
    of_pool: Fraction
    stored_of_pool: Fraction


def reservations(found: Sequence[Waste]) -> tuple[Reservation, ...]:
    """One per variant, in order of appearance."""
    by_variant: dict[str, list[Waste]] = {}
    for waste in found:
        by_variant.setdefault(waste.variant, []).append(waste)
    return tuple(
        Reservation(
            variant=name,
            stamp=own[0].stamp,
            reserves=own[0].reserves,
            running_mean=fmean(each.running_mean for each in own),
            of_held=fmean(each.of_held for each in own),
            of_pool=fmean(each.of_pool for each in own),
            stored_of_pool=fmean(each.stored_tokens / each.pool_tokens for each in own),
        )
        for name, own in by_variant.items()
    )


def wastes(analysis: Analysis, records: Sequence[TrialRecord]) -> tuple[Waste, ...]:
    """The reservations of every sealed trial whose requests differ in length."""
    by_id = {record.run.trial.trial_id: record for record in records}
    made = (
        _waste(trial, by_id[trial.trial_id], analysis)
        for trial in analysis.trials
        if trial.status == "sealed" and trial.workload.get("length_mix")
    )
    return tuple(waste for waste in made if waste is not None)


def _waste(trial: TrialAnalysis, record: TrialRecord, analysis: Analysis) -> Waste | None:
    seen, span = analysis.occupancy.get(trial.trial_id), phase(record.run)
    server = record.run.server
    pool = usable_tokens(server.granted) if server is not None else None
    longest = record.run.trial.server_flags.get("max_model_len")
    if seen is None or span is None or pool is None or not isinstance(longest, int):
        return None
    whole = trial.stamp == "emulated"
    running = series(record.engine_samples, lambda sample: sample.requests_running).between(*span)
    stored = Series((p.t_s, p.tokens_in_flight) for p in seen.points).between(*span).mean()
    blocks = Series((p.t_s, p.block_tokens) for p in seen.points).between(*span).mean()
    mean, peak = running.mean(), running.peak()
    held = blocks if not whole else None if mean is None else mean * longest
    if stored is None or not held or mean is None or peak is None:
        return None
    planned = [(r.prompt_tokens_planned, r.output_tokens_planned) for r in measured(record)]
    return Waste(
        variant=trial.variant,
        stamp=trial.stamp,
        trial_id=trial.trial_id,
        reserves="whole length" if whole else "blocks",
        running_mean=mean,
        running_peak=peak,
        stored_tokens=stored,
        held_tokens=held,
        pool_tokens=pool,
        max_model_len=longest,
        stored_predicted_tokens=stored_on_average(planned),
    )
