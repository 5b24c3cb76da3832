"""From which context on does a smaller KV dtype decode faster?

Method: a decode step reads the weights (a constant) and the cache of every request in the batch
(proportional to the context), so the time between tokens is a straight line over the context:
ITL = a · context + b. Each measured request is one point: its TPOT, at the context in the middle
of its decode. Every launch of a variant gets a line of its own by least squares, the variant's
line is their mean, and how far launches of one variant lie apart (their covariance in a and b,
pooled over the variants, since all of them ran on one machine) says how sure it is: the launch is
the replicate. Where no variant was launched twice, the line goes through all requests and its
spread is theirs, which is told.

Two lines cross where b1 − b0 = (a0 − a1) · context. The interval is that of the difference of the
two lines: a context belongs to it as long as the difference there can't be told from zero (which
is Fieller's interval for a ratio; Fieller 1954, "Some problems in interval estimation"). Contexts
are searched between the shortest and the longest that both were measured at; nothing is
extrapolated.

Not covered: curvature. A line through contexts far apart leans on the longest of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.analysis.latency import tpot
from harness.analysis.metrics import measured
from harness.analysis.stats import CONFIDENCE, least_squares, t_quantile
from harness.record import TrialRecord
from harness.units import Fraction, Seconds

#: Fewer points than these, or fewer contexts, make no line with an interval.
MIN_POINTS = 4
MIN_CONTEXTS = 3
#: Fewer degrees of freedom than these say nothing about launches (t would be 12.7).
MIN_LAUNCH_DEGREES = 2
_STEPS = 4096

#: (context, time between tokens) of one request.
Point = tuple[float, Seconds]
Kind = Literal["from", "always", "never", "not shown", "unclear"]
Unit = Literal["launch", "request"]


@dataclass(frozen=True, slots=True)
class Line:
    """ITL = ``slope_s`` · context + ``intercept_s``, and how sure that is.

    ``variance`` of the line at a context x is ``var_b + 2 cov x + var_a x²``, estimated with
    ``degrees`` degrees of freedom over the ``unit`` of chance. ``contexts`` and ``itl_s`` are the
    points, one per request.
    """

    variant: str
    slope_s: Seconds
    intercept_s: Seconds
    var_a: float
    var_b: float
    cov: float
    degrees: int
    unit: Unit
    launches: int
    contexts: tuple[float, ...]
    itl_s: tuple[Seconds, ...]

    @property
    def points(self) -> int:
        """Requests that the line rests on."""
        return len(self.contexts)

    @property
    def slope_half_s(self) -> Seconds:
        """Half of the slope's interval, per token."""
        return _quantile(self.degrees) * float(np.sqrt(self.var_a))

    @property
    def intercept_half_s(self) -> Seconds:
        """Half of the intercept's interval."""
        return _quantile(self.degrees) * float(np.sqrt(self.var_b))

    def variance(self, context: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Variance of the fitted line at each context."""
        found: npt.NDArray[np.float64] = (
            self.var_b + 2.0 * self.cov * context + self.var_a * context * context
        )
        # Rounding can leave a trace below zero where the launches agree exactly.
        return np.maximum(found, 0.0)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Where a variant becomes faster than the baseline.

    ``from``: at ``context_tokens`` the lines cross (None: the variant's is the lower one at every
    context measured, though that is not shown at each). Below ``low_tokens`` the variant is shown
    to be slower (None: nowhere), from ``high_tokens`` on to be faster (None: nowhere).
    ``always``: shown to be faster from the shortest measured context to the longest. ``never``:
    shown to be slower at the longest. ``not shown``: the lines do not cross, but at the longest
    context they can't be told apart. ``unclear``: no difference is shown anywhere.
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


def _quantile(degrees: int) -> float:
    return t_quantile((1.0 + CONFIDENCE) / 2.0, degrees)


def decode_points(records: Sequence[TrialRecord]) -> tuple[Point, ...]:
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


def fit_line(variant: str, points: Sequence[Point]) -> Line | None:
    """Least squares through the points; None if there are too few, or too few contexts.

    The spread is that of the points around the line: the request is the unit of chance.
    """
    contexts = np.array([context for context, _ in points], dtype=np.float64)
    itl = np.array([value for _, value in points], dtype=np.float64)
    if contexts.size < MIN_POINTS or not _enough_contexts(points):
        return None
    slope, intercept = least_squares(contexts, itl)
    count, mean = int(contexts.size), float(contexts.mean())
    spread = float(((contexts - mean) ** 2).sum())
    residuals = itl - (intercept + slope * contexts)
    noise = float((residuals * residuals).sum()) / (count - 2)
    return Line(
        variant=variant,
        slope_s=slope,
        intercept_s=intercept,
        var_a=noise / spread,
        var_b=noise * (1.0 / count + mean * mean / spread),
        cov=-noise * mean / spread,
        degrees=count - 2,
        unit="request",
        launches=1,
        contexts=tuple(contexts.tolist()),
        itl_s=tuple(itl.tolist()),
    )


def _enough_contexts(points: Sequence[Point]) -> bool:
    return len({context for context, _ in points}) >= MIN_CONTEXTS


def _line_through(points: Sequence[Point]) -> tuple[Seconds, Seconds]:
    """Slope and intercept of one launch's points."""
    return least_squares([context for context, _ in points], [itl for _, itl in points])


def fit_lines(by_variant: Mapping[str, Mapping[int, Sequence[Point]]]) -> tuple[Line, ...]:
    """A line per variant from its points by launch; variants with too few points have none.

    The unit of chance is the launch where launches were repeated, else the request.
    """
    pooled = {
        name: line
        for name, launches in by_variant.items()
        if (line := fit_line(name, [point for own in launches.values() for point in own]))
    }
    own_lines = {
        name: [_line_through(own) for own in by_variant[name].values() if _enough_contexts(own)]
        for name in pooled
    }
    degrees = sum(max(len(own) - 1, 0) for own in own_lines.values())
    if degrees < MIN_LAUNCH_DEGREES or not all(own_lines.values()):
        return tuple(replace(line, launches=len(by_variant[name])) for name, line in pooled.items())
    apart = _covariance(tuple(own_lines.values()), degrees)
    return tuple(_mean_line(pooled[name], own, apart, degrees) for name, own in own_lines.items())


def _covariance(
    lines: Sequence[Sequence[tuple[float, float]]], degrees: int
) -> tuple[float, float, float]:
    """Variances of slope and intercept and their covariance, within variants, over launches."""
    off = np.concatenate([np.array(own) - np.mean(own, axis=0) for own in lines])
    slopes, intercepts = off[:, 0], off[:, 1]
    products = (slopes * slopes, intercepts * intercepts, slopes * intercepts)
    var_a, var_b, cov = (float(each.sum()) / degrees for each in products)
    return var_a, var_b, cov


def _mean_line(
    pooled: Line,
    own: Sequence[tuple[float, float]],
    apart: tuple[float, float, float],
    degrees: int,
) -> Line:
    slope, intercept = (float(value) for value in np.mean(own, axis=0))
    var_a, var_b, cov = (value / len(own) for value in apart)
    return replace(
        pooled,
        slope_s=slope,
        intercept_s=intercept,
        var_a=var_a,
        var_b=var_b,
        cov=cov,
        degrees=degrees,
        unit="launch",
        launches=len(own),
    )


def break_even(baseline: Line, variant: Line) -> BreakEven:
    """Hold one line against the other over the contexts that both were measured at."""
    shortest = max(min(baseline.contexts), min(variant.contexts))
    longest = min(max(baseline.contexts), max(variant.contexts))
    at = np.linspace(shortest, longest, _STEPS)
    gap = (variant.intercept_s - baseline.intercept_s) + (variant.slope_s - baseline.slope_s) * at
    # Launches share one estimate of their spread; requests bring one each.
    shared = baseline.unit == "launch"
    degrees = baseline.degrees if shared else baseline.degrees + variant.degrees
    half = _quantile(degrees) * np.sqrt(baseline.variance(at) + variant.variance(at))
    slower, faster = gap - half > 0, gap + half < 0
    kind = _kind(gap, slower, faster)
    low = high = cross = None
    if kind == "from":
        cross = float(at[int(np.argmax(gap < 0))]) if gap[0] >= 0 else None
        low = float(at[int(np.argmin(slower))]) if slower[0] else None
        high = float(at[int(np.argmax(faster))]) if faster.any() else None
    return BreakEven(variant.variant, baseline.variant, kind, cross, low, high, shortest, longest)


def _kind(
    gap: npt.NDArray[np.float64], slower: npt.NDArray[np.bool_], faster: npt.NDArray[np.bool_]
) -> Kind:
    if not (slower.any() or faster.any()):
        return "unclear"
    if faster.all():
        return "always"
    if slower[-1]:
        # Faster at short contexts alone is a gain of the constant part: it ends where it is wanted.
        return "never"
    crosses = gap[0] >= 0 > gap[-1]
    return "from" if crosses or faster[-1] else "not shown"


def lines(records: Sequence[TrialRecord]) -> tuple[Line, ...]:
    """A line per variant that has points enough, in order of appearance."""
    by_variant: dict[str, dict[int, list[Point]]] = {}
    for record in records:
        trial = record.run.trial
        points = decode_points([record])
        if points:
            launches = by_variant.setdefault(trial.variant, {})
            launches.setdefault(trial.repeat, []).extend(points)
    return fit_lines(by_variant)


__all__ = [
    "BreakEven",
    "Line",
    "break_even",
    "decode_points",
    "fit_line",
    "fit_lines",
    "lines",
]
