"""Replicates → a ratio with its interval, and the noise floor of the baseline against itself.

Method: the replicate is the server launch. Variant and baseline are paired by repeat (the two
were started next to each other, so a drift of the machine falls on both); the interval is
Student's t on the logarithms of the paired ratios, so the ratio is their geometric mean and the
interval of baseline/variant is the reciprocal of that of variant/baseline. With few replicates a
bootstrap would be too narrow (three values can only be redrawn in ten ways). Below three pairs
there is no interval, and none is made up. The noise floor is the largest ratio between any two
launches of the baseline: an effect inside it is no difference shown.

The t quantile is computed here from its closed form for whole degrees of freedom (Abramowitz and
Stegun 26.7.3 and 26.7.4): it is the only thing that a 35 MB statistics package would be needed
for. Shares of counts have intervals of their own (Wilson; Agresti and Min), and lines and
percentiles are computed here for every analysis.

Not covered: tests across many metrics at once; at 95 % about one interval in twenty misses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev, variance

import numpy as np
import numpy.typing as npt

from harness.analysis.quality_results import Range
from harness.analysis.results import Effect, Interval, NoiseFloor
from harness.units import Fraction

#: Fewer pairs than this give no interval.
MIN_REPLICATES = 3
CONFIDENCE: Fraction = 0.95
#: The normal quantile that leaves 2.5 % on either side: ``CONFIDENCE`` in one number.
Z_95 = 1.959964

METHOD = "Student's t on log-ratios, paired by repeat"
METHOD_UNPAIRED = "Welch's t on logarithms, unpaired"


def ratio_interval(
    baseline_by_repeat: Mapping[int, float],
    variant_by_repeat: Mapping[int, float],
    confidence: Fraction = CONFIDENCE,
) -> Interval | None:
    """Return variant/baseline over the repeats that both have.

    None if no repeat is in both, or a value is zero or negative (it has no ratio).
    """
    repeats = sorted(baseline_by_repeat.keys() & variant_by_repeat.keys())
    pairs = [(baseline_by_repeat[repeat], variant_by_repeat[repeat]) for repeat in repeats]
    if not pairs or any(not _has_ratio(value) for pair in pairs for value in pair):
        return None
    logs = [math.log(variant) - math.log(baseline) for baseline, variant in pairs]
    ratio, count = math.exp(fmean(logs)), len(logs)
    if count < MIN_REPLICATES:
        reason = f"no interval: {count} of the {MIN_REPLICATES} repeats that one needs"
        return Interval(ratio, None, None, count, confidence, METHOD, reason)
    half = t_quantile((1.0 + confidence) / 2.0, count - 1) * stdev(logs) / math.sqrt(count)
    low, high = math.exp(fmean(logs) - half), math.exp(fmean(logs) + half)
    return Interval(ratio, low, high, count, confidence, METHOD)


def unpaired_ratio_interval(
    baseline_by_repeat: Mapping[int, float],
    variant_by_repeat: Mapping[int, float],
    confidence: Fraction = CONFIDENCE,
) -> Interval | None:
    """Return variant/baseline where a repeat of one side is no neighbour of the other's.

    For two runs taken apart: Welch's interval for the difference of the mean logarithms (Welch
    1947), its degrees of freedom (Welch–Satterthwaite) rounded down, which only widens it. None
    if a side has no value, or one that is zero or negative; no interval below 3 on either side.
    """
    sides = [tuple(side.values()) for side in (baseline_by_repeat, variant_by_repeat)]
    if not all(sides) or any(not _has_ratio(value) for side in sides for value in side):
        return None
    base, mine = ([math.log(value) for value in side] for side in sides)
    shift, count = fmean(mine) - fmean(base), min(len(base), len(mine))
    if count < MIN_REPLICATES:
        reason = f"no interval: {count} of the {MIN_REPLICATES} repeats that one needs"
        return Interval(math.exp(shift), None, None, count, confidence, METHOD_UNPAIRED, reason)
    half = _welch_half(base, mine, confidence)
    low, high = math.exp(shift - half), math.exp(shift + half)
    return Interval(math.exp(shift), low, high, count, confidence, METHOD_UNPAIRED)


def _welch_half(base: Sequence[float], mine: Sequence[float], confidence: Fraction) -> float:
    """Half the interval's width; zero where neither side has any spread."""
    parts = [(variance(side) / len(side), len(side) - 1) for side in (base, mine)]
    total = sum(part for part, _ in parts)
    if total == 0.0:
        return 0.0
    # Each part as a share of the sum, so that tiny variances do not vanish when squared.
    degrees = 1.0 / sum((part / total) ** 2 / free for part, free in parts)
    # Rounded down, but not from 3.999… where 4 is meant.
    whole = max(int(degrees + 1e-9), 1)
    return t_quantile((1.0 + confidence) / 2.0, whole) * math.sqrt(total)


def _has_ratio(value: float) -> bool:
    return math.isfinite(value) and value > 0.0


def noise_floor(values: Sequence[float]) -> NoiseFloor | None:
    """The largest ratio between two launches of the same thing; None below two, or at zero."""
    if len(values) < 2 or not all(_has_ratio(value) for value in values):
        return None
    return NoiseFloor(max(values) / min(values), len(values))


def centre(values: Sequence[float]) -> float | None:
    """The median of the replicates."""
    return median(values) if values else None


def effect(interval: Interval | None, noise: NoiseFloor | None) -> Effect:
    """Say what the replicates show.

    A difference is shown when the interval leaves out 1 and the ratio lies outside the noise
    floor. Without an interval nothing is shown either way.
    """
    if interval is None:
        return "unknown"
    if interval.low is None or interval.high is None:
        return "no interval"
    floor = noise.ratio if noise is not None else 1.0
    if interval.low > 1.0 and interval.ratio > floor:
        return "higher"
    if interval.high < 1.0 and interval.ratio < 1.0 / floor:
        return "lower"
    return "no difference shown"


def effect_of_counts(
    baseline_by_repeat: Mapping[int, float], variant_by_repeat: Mapping[int, float]
) -> Effect:
    """Say what counts show that may be zero, and so have no ratio: are their ranges apart?"""
    mine, theirs = tuple(variant_by_repeat.values()), tuple(baseline_by_repeat.values())
    if not mine or not theirs:
        return "unknown"
    if set(mine) == set(theirs):
        return "no difference shown"
    if len(baseline_by_repeat.keys() & variant_by_repeat.keys()) < MIN_REPLICATES:
        return "no interval"
    if min(mine) > max(theirs):
        return "higher"
    return "lower" if max(mine) < min(theirs) else "no difference shown"


def needs_more_repeats(interval: Interval | None, relative_width: float) -> bool:
    """Whether the interval is still missing, or wider than ``relative_width`` (0.05 is 5 %)."""
    width = interval.relative_width if interval is not None else None
    return width is None or width > relative_width


def t_quantile(probability: Fraction, degrees: int) -> float:
    """The t below which ``probability`` of Student's distribution lies (0.5 or more).

    Found by bisection on :func:`t_cdf`.

    Raises:
        ValueError: a probability outside 0.5–1, or no degree of freedom.
    """
    if not 0.5 <= probability < 1.0 or degrees < 1:
        raise ValueError(f"no t quantile of {probability} with {degrees} degrees of freedom")
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < probability:
        low, high = high, high * 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cdf(middle, degrees) < probability else (low, middle)
    return high


def t_cdf(t: float, degrees: int) -> Fraction:
    """P(T ≤ t) for ``t ≥ 0``: a finite series in cos θ, θ = arctan(t/√degrees)."""
    theta = math.atan2(t, math.sqrt(degrees))
    cosine, sine = math.cos(theta), math.sin(theta)
    odd = degrees % 2
    term, series = (cosine, cosine) if odd else (1.0, 1.0)
    if degrees == 1:
        series = 0.0
    for k in range(2 + odd, degrees - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        series += term
    two_sided = 2.0 / math.pi * (theta + sine * series) if odd else sine * series
    return 0.5 + two_sided / 2.0


def wilson(hits: int, of: int, z: float = Z_95) -> tuple[Fraction, Fraction]:
    """Wilson's 95 % interval of a share (1927): inside 0–1, useful for few and extreme counts."""
    share = hits / of
    centre = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    # At the ends the formula gives them exactly; rounding would not.
    return (0.0 if hits == 0 else low), (1.0 if hits == of else high)


def net_range(wins: int, losses: int, pairs: int, z: float = Z_95) -> Range:
    """(wins − losses) / pairs with the adjusted Wald interval of Agresti and Min (2005)."""
    n, won, lost = pairs + 2, wins + 0.5, losses + 0.5
    centre = (won - lost) / n
    half = z * math.sqrt(max(0.0, won + lost - (won - lost) ** 2 / n)) / n
    return Range((wins - losses) / pairs, max(-1.0, centre - half), min(1.0, centre + half))


def percentiles(values: npt.ArrayLike, shares: Sequence[Fraction]) -> tuple[float, ...]:
    """The values below which those shares lie, on the line between their neighbours.

    Linear interpolation, numpy's default; ``values`` must hold at least one.
    """
    found = np.quantile(np.asarray(values, dtype=np.float64), shares)
    return tuple(float(value) for value in found)


def least_squares(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[float, float]:
    """Slope and intercept of the straight line through the points that leaves the least squares.

    Raises:
        ValueError: fewer than two different x, which make no line.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if np.unique(xs).size < 2:
        raise ValueError("a line needs at least two different x")
    off = xs - xs.mean()
    slope = float((off * (ys - ys.mean())).sum() / (off * off).sum())
    return slope, float(ys.mean()) - slope * float(xs.mean())
