"""From which context on does a smaller KV dtype decode faster?

Method: a decode step reads the weights (a constant) and the cache of every request in the batch
(proportional to the context), so the time between tokens is a straight line over the context:
ITL = a · context + b. Each measured request is one point: its TPOT, at the context in the middle
of its decode. Two lines, fitted by least squares, cross where b1 − b0 = (a0 − a1) · context. The
interval is that of the difference of the two lines: a context belongs to it as long as the
difference there can't be told from zero (which for two exact lines is Fieller's interval; Fieller
1954, "Some problems in interval estimation"). Contexts are searched up to the longest measured
one; nothing is extrapolated.

Not covered: the replicate as the unit of chance: requests of one launch are alike, so with few
launches the interval is on the narrow side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.analysis.latency import tpot
from harness.analysis.metrics import measured
from harness.analysis.stats import CONFIDENCE, t_quantile
from harness.record import TrialRecord
from harness.units import Fraction, Seconds

#: Fewer points than these, or fewer contexts, make no line with an interval.
MIN_POINTS = 4
MIN_CONTEXTS = 3
_STEPS = 4096

Kind = Literal["from", "always", "never", "unclear"]


@dataclass(frozen=True, slots=True)
class Line:
    """ITL = ``slope_s`` · context + ``intercept_s``; ``*_half`` are half 95 % intervals.

    ``deviation_s`` is the residual standard deviation, ``mean_context`` and ``spread`` (the sum of
    squared distances from it) are what an interval at some context needs.
    """

    variant: str
    slope_s: Seconds
    intercept_s: Seconds
    slope_half_s: Seconds
    intercept_half_s: Seconds
    points: int
    contexts: tuple[float, ...]
    itl_s: tuple[Seconds, ...]
    deviation_s: Seconds
    mean_context: float
    spread: float

    def variance(self, context: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Variance of the fitted line at each context."""
        off = context - self.mean_context
        variance: npt.NDArray[np.float64] = self.deviation_s**2 * (
            1.0 / self.points + off * off / self.spread
        )
        return variance


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Where a variant becomes faster than the baseline.

    ``from``: at ``context_tokens`` the lines cross; the difference can't be told from zero between
    ``low_tokens`` and ``high_tokens`` (None: it can't up to the longest measured context).
    ``always``: faster from the shortest measured context on. ``never``: there is no measured
    context from which on it is faster. ``unclear``: no difference is shown anywhere.
    """

    variant: str
    baseline: str
    kind: Kind
    context_tokens: float | None
    low_tokens: float | None
    high_tokens: float | None
    shortest_tokens: float
    longest_tokens: float
    confidence: Fraction = CONFIDENCE


def decode_points(records: Sequence[TrialRecord]) -> tuple[tuple[float, Seconds], ...]:
    """(context in the middle of the decode, TPOT) of every measured request that has one."""
    points = []
    for record in records:
        if record.run.status != "sealed":
            continue
        for request in measured(record):
            itl = tpot(request) if request.error is None else None
            if itl is not None and request.output_tokens is not None:
                prompt = request.prompt_tokens or request.prompt_tokens_planned
                points.append((prompt + request.output_tokens / 2, itl))
    return tuple(points)


def fit_line(variant: str, points: Sequence[tuple[float, Seconds]]) -> Line | None:
    """Least squares through the points; None if there are too few, or too few contexts."""
    contexts = np.array([context for context, _ in points], dtype=np.float64)
    itl = np.array([value for _, value in points], dtype=np.float64)
    if contexts.size < MIN_POINTS or len(set(contexts.tolist())) < MIN_CONTEXTS:
        return None
    mean, count = float(contexts.mean()), int(contexts.size)
    off = contexts - mean
    spread = float((off * off).sum())
    slope = float((off * itl).sum() / spread)
    intercept = float(itl.mean()) - slope * mean
    residuals = itl - (intercept + slope * contexts)
    deviation = math.sqrt(float((residuals * residuals).sum()) / (count - 2))
    quantile = t_quantile((1.0 + CONFIDENCE) / 2.0, count - 2)
    return Line(
        variant=variant,
        slope_s=slope,
        intercept_s=intercept,
        slope_half_s=quantile * deviation / math.sqrt(spread),
        intercept_half_s=quantile * deviation * math.sqrt(1.0 / count + mean * mean / spread),
        points=count,
        contexts=tuple(contexts.tolist()),
        itl_s=tuple(itl.tolist()),
        deviation_s=deviation,
        mean_context=mean,
        spread=spread,
    )


def break_even(baseline: Line, variant: Line) -> BreakEven:
    """Hold one line against the other over the contexts that both were measured at."""
    shortest = max(min(baseline.contexts), min(variant.contexts))
    longest = min(max(baseline.contexts), max(variant.contexts))
    at = np.linspace(shortest, longest, _STEPS)
    gap = (variant.intercept_s - baseline.intercept_s) + (variant.slope_s - baseline.slope_s) * at
    degrees = baseline.points + variant.points - 4
    half = t_quantile((1.0 + CONFIDENCE) / 2.0, degrees) * np.sqrt(
        baseline.variance(at) + variant.variance(at)
    )
    kind = _kind(gap, half)
    low = high = cross = None
    if kind == "from":
        cross = float(at[int(np.argmax(gap < 0))])
        # Before `low` the variant is shown slower, from `high` on it is shown faster.
        slower, faster = gap - half > 0, gap + half < 0
        low = float(at[int(np.argmin(slower))])
        high = float(at[int(np.argmax(faster))]) if faster.any() else None
    return BreakEven(variant.variant, baseline.variant, kind, cross, low, high, shortest, longest)


def _kind(gap: npt.NDArray[np.float64], half: npt.NDArray[np.float64]) -> Kind:
    if not ((gap - half > 0).any() or (gap + half < 0).any()):
        return "unclear"
    if (gap + half < 0).all():
        return "always"
    if gap[0] >= 0 and gap[-1] < 0:
        return "from"
    # Faster at short contexts alone is a gain of the constant part: it ends where it is wanted.
    return "never" if gap[-1] >= 0 else "always"


def lines(records: Sequence[TrialRecord]) -> tuple[Line, ...]:
    """A line per variant that has points enough, in order of appearance."""
    by_variant: dict[str, list[TrialRecord]] = {}
    for record in records:
        by_variant.setdefault(record.run.trial.variant, []).append(record)
    made = (fit_line(name, decode_points(own)) for name, own in by_variant.items())
    return tuple(line for line in made if line is not None)


__all__ = ["BreakEven", "Line", "break_even", "decode_points", "fit_line", "lines"]
