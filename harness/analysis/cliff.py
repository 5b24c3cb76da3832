"""At which concurrency is the pool full, and does theory know it beforehand?

Method: requests of one length take so many blocks each, so floor(usable blocks / blocks each) of
them fit; the next one queues, or has another thrown out. Concurrency is swept across that number.
A level is over the cliff if requests were preempted there, or if never as many ran at once as
were sent. The measured cliff is the lowest such level; theory is right within one step if no
level at or below the predicted number is over it, and the first one above is.

The engine's ``waiting`` gauge is no sign by itself: requests also wait for their turn in a step's
token budget. Not covered: open loops, and loads whose requests differ in length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness.analysis.results import Analysis, TrialAnalysis
from harness.analysis.sweep import MIN_LEVELS, sweep_key
from harness.specs.pool import usable_blocks
from harness.units import Seconds, Tokens


@dataclass(frozen=True, slots=True)
class Level:
    """One concurrency: medians over the repeats."""

    concurrency: int
    output_throughput: float | None
    ttft_p90_s: Seconds | None
    running_peak: float | None
    waiting_peak: float | None
    preemptions: float | None

    @property
    def over(self) -> bool | None:
        """Whether the pool could not hold what was sent; None if the engine does not tell."""
        if self.preemptions is None or self.running_peak is None:
            return None
        return self.preemptions > 0 or self.running_peak < self.concurrency


@dataclass(frozen=True, slots=True)
class Cliff:
    """A sweep of one variant with requests of one length, in order of concurrency.

    ``fits_exactly`` is blocks over blocks, ``fits`` its whole part: the predicted last level
    before the cliff. ``last_under`` and ``first_over`` are the measured ones.
    """

    variant: str
    context_tokens: Tokens
    output_tokens: Tokens
    name: str
    blocks_per_request: int
    usable_blocks: int
    levels: tuple[Level, ...]

    @property
    def fits(self) -> int:
        """Requests that fit, by theory."""
        return self.usable_blocks // self.blocks_per_request

    @property
    def first_over(self) -> int | None:
        """The lowest level at which the pool was too small."""
        return next((level.concurrency for level in self.levels if level.over), None)

    @property
    def last_under(self) -> int | None:
        """The highest level before the first at which the pool was too small."""
        first = self.first_over
        under = [
            level.concurrency
            for level in self.levels
            if level.over is False and (first is None or level.concurrency < first)
        ]
        return max(under, default=None)

    @property
    def within_one_step(self) -> bool | None:
        """Whether the cliff lies in the step that theory names; None if the sweep has none."""
        above = next((lv.concurrency for lv in self.levels if lv.concurrency > self.fits), None)
        if above is None or any(level.over is None for level in self.levels):
            return None
        return self.first_over == above


def cliffs(analysis: Analysis) -> tuple[Cliff, ...]:
    """Every sweep over concurrency of the run."""
    sweeps: dict[tuple[str, str], list[TrialAnalysis]] = {}
    for trial in analysis.trials:
        key = sweep_key(trial.workload)
        if trial.status == "sealed" and key is not None:
            sweeps.setdefault((trial.variant, key), []).append(trial)
    made = (_cliff(trials) for trials in sweeps.values())
    return tuple(cliff for cliff in made if cliff is not None)


def _cliff(trials: Sequence[TrialAnalysis]) -> Cliff | None:
    first = trials[0]
    shaped = any(first.workload.get(k) for k in ("length_mix", "shared_prefix_tokens", "turns"))
    levels = sorted({int(trial.workload["concurrency"]) for trial in trials})
    each = first.theory.blocks_per_request if first.theory is not None else None
    usable = usable_blocks(first.granted.num_blocks or 0)
    if shaped or len(levels) < MIN_LEVELS or each is None or usable < 1:
        return None
    return Cliff(
        variant=first.variant,
        context_tokens=int(first.workload["context_tokens"]),
        output_tokens=int(first.workload["output_tokens"]),
        name=str(first.workload.get("name") or ""),
        blocks_per_request=each,
        usable_blocks=usable,
        levels=tuple(_level(level, trials) for level in levels),
    )


def _level(concurrency: int, trials: Sequence[TrialAnalysis]) -> Level:
    own = [t.summary for t in trials if t.workload["concurrency"] == concurrency and t.summary]
    return Level(
        concurrency=concurrency,
        output_throughput=_median([summary.output_throughput for summary in own]),
        ttft_p90_s=_median([summary.ttft_s.p90 for summary in own]),
        running_peak=_median([summary.requests_running_peak for summary in own]),
        waiting_peak=_median([summary.requests_waiting_peak for summary in own]),
        preemptions=_median([summary.preemptions for summary in own]),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
