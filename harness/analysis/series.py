"""Sampled quantities over a stretch of time: peaks, means, counter growth, integrals.

Method: a reading is a (time, value) pair; readings whose value is unknown are dropped, and
nothing is made of no readings but None. Integrals and time-weighted means join the readings by
straight lines. Not covered: which stretch is meant (``metrics`` passes the measured phase).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from harness.units import Fraction, Seconds

#: An integral needs readings that reach this near to both ends, as a share of the stretch.
_REACH: Fraction = 0.05


class Timed(Protocol):
    """Anything with a time on the trial's clock."""

    @property
    def t_s(self) -> Seconds:
        """Seconds since the start of the trial."""
        ...


T = TypeVar("T", bound=Timed)
Number = TypeVar("Number", int, float)


class Series:
    """Readings of one quantity in order of time, unknown ones left out."""

    __slots__ = ("t_s", "values")

    def __init__(self, readings: Iterable[tuple[Seconds, float | None]]) -> None:
        pairs = sorted((t, value) for t, value in readings if value is not None)
        self.t_s: npt.NDArray[np.float64] = np.array([t for t, _ in pairs], dtype=np.float64)
        self.values: npt.NDArray[np.float64] = np.array([v for _, v in pairs], dtype=np.float64)

    def __len__(self) -> int:
        return len(self.values)

    def between(self, start: Seconds, end: Seconds) -> Series:
        """The readings of ``start ≤ t ≤ end``."""
        inside = (self.t_s >= start) & (self.t_s <= end)
        return Series(zip(self.t_s[inside].tolist(), self.values[inside].tolist(), strict=True))

    def peak(self) -> float | None:
        """The largest reading."""
        return float(self.values.max()) if len(self) else None

    def mean(self) -> float | None:
        """The time-weighted mean from the first reading to the last."""
        if not len(self):
            return None
        span = float(self.t_s[-1] - self.t_s[0])
        if span <= 0:
            return float(self.values.mean())
        return float(np.trapezoid(self.values, self.t_s)) / span

    def increase(self, start: Seconds, end: Seconds) -> float | None:
        """Growth of a counter: last reading up to ``start`` → first from ``end`` on.

        Where no reading lies beyond an end the nearest inside is taken. None with fewer than two
        readings, or if the counter ever fell (its process was restarted).
        """
        if len(self) < 2 or bool((np.diff(self.values) < 0).any()):
            return None
        first = max(int(np.searchsorted(self.t_s, start, side="right")) - 1, 0)
        last = min(int(np.searchsorted(self.t_s, end, side="left")), len(self) - 1)
        return float(self.values[last] - self.values[first]) if last > first else None

    def covers(self, start: Seconds, end: Seconds) -> bool:
        """Whether the readings reach (nearly) from ``start`` to ``end``."""
        slack = _REACH * (end - start)
        return len(self) >= 2 and self.t_s[0] <= start + slack and self.t_s[-1] >= end - slack

    def at(self, t: Seconds) -> float:
        """The value at ``t`` on the straight line between its neighbours; held beyond the ends."""
        return float(np.interp(t, self.t_s, self.values))

    def integral(self, start: Seconds, end: Seconds) -> float | None:
        """∫ value dt from ``start`` to ``end``; None unless the readings cover it."""
        if end <= start or not self.covers(start, end):
            return None
        inner = (self.t_s > start) & (self.t_s < end)
        t = np.concatenate(([start], self.t_s[inner], [end]))
        return float(np.trapezoid(np.interp(t, self.t_s, self.values), t))


def series(samples: Sequence[T], value: Callable[[T], float | None]) -> Series:
    """One quantity of ``samples``."""
    return Series((sample.t_s, value(sample)) for sample in samples)


def total(parts: Iterable[Number | None]) -> Number | None:
    """The sum, None if there is no part or any part is unknown."""
    values = list(parts)
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None
