"""Does KV memory grow with the context as the formula says, and does device memory show it?

Method: each trial of a closed loop gives one point, the largest reading of the engine's block
gauge × the blocks it refers to, beside the whole blocks of as many requests as are in flight. The
points with one request at a time give the measured bytes per token: the slope of a straight line
through them (least squares). Since a request's last block is mostly not full, a point is as
predicted if it is off by less than one block per request.

Device memory (NVML, or resident memory of the server on the CPU) is taken from the same moments.
Not covered: layers with a window or a state, whose memory is not proportional to the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.occupancy import FLAT_WITHIN
from harness.analysis.results import Analysis, Occupancy, TrialAnalysis
from harness.analysis.stats import least_squares
from harness.specs.pool import blocks_in_use
from harness.units import Bytes, Fraction, Tokens

#: Fewer contexts than these make no line.
MIN_CONTEXTS = 3


@dataclass(frozen=True, slots=True)
class GrowthPoint:
    """KV memory of one trial at its peak. ``requests`` are those in flight at once.

    ``device_low_bytes``/``device_high_bytes`` are the extremes of device memory over the trial.
    """

    context_tokens: Tokens
    output_tokens: Tokens
    requests: int
    predicted_bytes: float
    measured_bytes: float
    block_bytes: float
    device_low_bytes: Bytes | None
    device_high_bytes: Bytes | None

    @property
    def error_fraction(self) -> Fraction:
        """(measured − predicted) / predicted."""
        return (self.measured_bytes - self.predicted_bytes) / self.predicted_bytes

    @property
    def within_a_block(self) -> bool:
        """Whether the error stays below one block per request."""
        return abs(self.measured_bytes - self.predicted_bytes) < self.requests * self.block_bytes


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """One variant's points, in order of context, and the line through the single requests.

    ``bytes_per_token`` is None without ``MIN_CONTEXTS`` contexts at one request at a time.
    """

    variant: str
    points: tuple[GrowthPoint, ...]
    bytes_per_token: float | None
    predicted_bytes_per_token: float | None

    @property
    def device_span_bytes(self) -> Bytes | None:
        """By how much device memory moved over all points together."""
        lows = [p.device_low_bytes for p in self.points if p.device_low_bytes is not None]
        highs = [p.device_high_bytes for p in self.points if p.device_high_bytes is not None]
        return max(highs) - min(lows) if lows and highs else None

    @property
    def device_flat(self) -> bool | None:
        """Whether that is as little as ``occupancy`` calls flat; None where nobody read it."""
        span = self.device_span_bytes
        highs = [p.device_high_bytes for p in self.points if p.device_high_bytes is not None]
        return None if span is None else span <= FLAT_WITHIN * max(highs)


def growths(analysis: Analysis) -> tuple[MemoryGrowth, ...]:
    """The growth of each variant that was measured at enough contexts."""
    found: dict[str, list[TrialAnalysis]] = {}
    for trial in analysis.trials:
        if trial.status == "sealed":
            found.setdefault(trial.variant, []).append(trial)
    made = (_growth(name, trials, analysis) for name, trials in found.items())
    return tuple(growth for growth in made if growth is not None)


def _growth(
    variant: str, trials: Sequence[TrialAnalysis], analysis: Analysis
) -> MemoryGrowth | None:
    points = [_point(trial, analysis.occupancy.get(trial.trial_id)) for trial in trials]
    known = sorted(
        (point for point in points if point is not None),
        key=lambda point: (point.requests, point.context_tokens),
    )
    if len({point.context_tokens for point in known}) < MIN_CONTEXTS:
        return None
    theory = next((trial.theory for trial in trials if trial.theory is not None), None)
    return MemoryGrowth(
        variant=variant,
        points=tuple(known),
        bytes_per_token=slope([point for point in known if point.requests == 1]),
        predicted_bytes_per_token=None if theory is None else theory.kv.kv_bytes_per_token,
    )


def _point(trial: TrialAnalysis, seen: Occupancy | None) -> GrowthPoint | None:
    summary, theory, granted = trial.summary, trial.theory, trial.granted
    if summary is None or theory is None or theory.kv_bytes_in_use is None:
        return None
    held, size = blocks_in_use(summary.kv_usage_peak, granted.num_blocks), granted.block_size
    rate, each = theory.kv.kv_bytes_per_token, theory.kv_bytes_per_request
    if held is None or not size or not rate or not each:
        return None
    device = [p.device_bytes for p in seen.points if p.device_bytes is not None] if seen else []
    return GrowthPoint(
        context_tokens=int(trial.workload["context_tokens"]),
        output_tokens=int(trial.workload["output_tokens"]),
        requests=round(theory.kv_bytes_in_use / each),
        predicted_bytes=theory.kv_bytes_in_use,
        measured_bytes=held * size * rate,
        block_bytes=size * rate,
        device_low_bytes=min(device, default=None),
        device_high_bytes=max(device, default=None),
    )


def slope(points: Sequence[GrowthPoint]) -> float | None:
    """Bytes per further token of context, by least squares."""
    if len({point.context_tokens for point in points}) < MIN_CONTEXTS:
        return None
    return least_squares(
        [point.context_tokens for point in points], [point.measured_bytes for point in points]
    )[0]
