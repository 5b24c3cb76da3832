"""The requests of one trial as a table: which of them are shown, and what stands in their cells.

Method: all of them where they fit; else those that failed, those that were slowest by each
latency, and others spread evenly over time, so that sorting what is shown brings up what was
slowest of all. Each figure carries its value for sorting. Nothing on the page is computed from
these rows. Not covered: markup, sorting and filtering (``templates``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness import units
from harness.analysis import latency
from harness.record import RequestRecord

#: Rows shown per trial and in a whole page, which has to stay under 5 MB.
MAX_REQUESTS = 150
MAX_REQUESTS_PAGE = 1500
MAX_TEXT = 120

_LATENCIES: tuple[Callable[[RequestRecord], float | None], ...] = (
    latency.ttft,
    latency.tpot,
    latency.e2el,
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure as written, and its value as a script reads it; empty where it is unknown."""

    text: str
    value: str


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One request as written."""

    index: Figure
    is_warmup: bool
    figures: tuple[Figure, ...]
    ended: str
    text: str


@dataclass(frozen=True, slots=True)
class RequestTable:
    """The rows of one trial, and a sentence that says how many of how many they are."""

    lines: tuple[RequestLine, ...]
    told: str
    is_whole: bool


def rows_per_trial(trials: int) -> int:
    """How many requests each of so many trials may show."""
    return max(1, min(MAX_REQUESTS, MAX_REQUESTS_PAGE // max(1, trials)))


def table(requests: Sequence[RequestRecord], most: int) -> RequestTable:
    """At most ``most`` of a trial's requests, in order of sending."""
    total = units.format_count(len(requests))
    if len(requests) <= most:
        told = f"All {total} requests, in order of sending."
        return RequestTable(_lines(requests), told, is_whole=True)
    failed = [request for request in requests if request.error is not None]
    shown = _evenly(failed, most // 2)
    failed_shown = len(shown)
    measured = [r for r in requests if r.error is None and r.phase == "measured"]
    slowest = max(0, (most - len(shown)) // 6)
    shown += _slowest(measured, slowest)
    taken = {id(request) for request in shown}
    others = [request for request in measured if id(request) not in taken]
    shown += _evenly(sorted(others, key=lambda r: r.sent_s), most - len(shown))
    kinds = [
        *([f"{failed_shown} of the {len(failed)} that failed"] if failed else []),
        *([f"the {slowest} slowest each by TTFT, TPOT and E2EL"] if slowest else []),
        "others spread evenly over time",
    ]
    told = (
        f"{units.format_count(len(shown))} of {total} requests: {', '.join(kinds)}. Sorting and "
        "filtering act on these rows; every statistic of this page is of all requests."
    )
    return RequestTable(_lines(shown), told, is_whole=False)


def _slowest(requests: Sequence[RequestRecord], count: int) -> list[RequestRecord]:
    """The ``count`` slowest by each latency, none twice."""
    found: dict[int, RequestRecord] = {}
    for value in _LATENCIES:
        known = [request for request in requests if value(request) is not None]
        for request in heapq.nlargest(count, known, key=lambda request: value(request) or 0.0):
            found[id(request)] = request
    return list(found.values())


def _evenly(requests: Sequence[RequestRecord], most: int) -> list[RequestRecord]:
    """At most ``most`` of them, at equal distances, the first and the last included."""
    if len(requests) <= most:
        return list(requests)
    if most < 2:
        return list(requests[:most])
    return [requests[step * (len(requests) - 1) // (most - 1)] for step in range(most)]


def _lines(requests: Sequence[RequestRecord]) -> tuple[RequestLine, ...]:
    return tuple(_line(request) for request in sorted(requests, key=lambda r: r.sent_s))


def _line(request: RequestRecord) -> RequestLine:
    times = (request.sent_s, *(value(request) for value in _LATENCIES))
    return RequestLine(
        index=_count(request.index),
        is_warmup=request.phase == "warmup",
        figures=(
            *(Figure(units.format_duration(time), _value(time)) for time in times),
            _count(request.prompt_tokens),
            _count(request.output_tokens),
        ),
        ended=_excerpt(request.error or request.finish_reason or units.DASH),
        text=_excerpt(request.text or ""),
    )


def _count(count: int | None) -> Figure:
    return Figure(units.format_count(count), _value(count))


def _value(value: float | None) -> str:
    """Six digits tell any two rows apart that a reader would."""
    return "" if value is None else units.format_significant(value, 6)


def _excerpt(text: str) -> str:
    line = " ".join(text[: 8 * MAX_TEXT].split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"
