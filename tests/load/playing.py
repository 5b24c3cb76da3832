"""Plays small plans and gathers what the hooks were given."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.clock import Clock
from harness.load import LoadOutcome, LoadProgress, Target, play
from harness.record import ClientSample, PlannedRequest, RequestRecord


def planned(
    count: int, *, warmups: int = 0, output_tokens: int = 8, due: Sequence[float] | None = None
) -> tuple[PlannedRequest, ...]:
    """So many requests of seven prompt tokens; ``due`` makes the measured ones an open loop."""
    return tuple(
        PlannedRequest(
            index=i,
            phase="warmup" if i < warmups else "measured",
            prompt_token_ids=tuple(range(1000 + i, 1007 + i)),
            output_tokens=output_tokens,
            planned_send_s=due[i - warmups] if due and i >= warmups else None,
        )
        for i in range(warmups + count)
    )


@dataclass
class Played:
    """Everything that one load handed on."""

    outcome: LoadOutcome | None = None
    records: list[RequestRecord] = field(default_factory=list)
    samples: list[ClientSample] = field(default_factory=list)
    progress: list[LoadProgress] = field(default_factory=list)

    @property
    def by_index(self) -> list[RequestRecord]:
        return sorted(self.records, key=lambda record: record.index)


class StopAfter:
    """A reason to stop, given this long after so many requests were first seen in flight."""

    def __init__(self, delay_s: float, in_flight: int) -> None:
        self.delay_s = delay_s
        self.in_flight = in_flight
        self.seen_s: float | None = None

    def on_progress(self, progress: LoadProgress) -> None:
        if self.seen_s is None and progress.requests_in_flight >= self.in_flight:
            self.seen_s = time.monotonic()

    def should_stop(self) -> str | None:
        due = self.seen_s is not None and time.monotonic() >= self.seen_s + self.delay_s
        return "the server died" if due else None

    @property
    def hooks(self) -> dict[str, Any]:
        return {"on_progress": self.on_progress, "should_stop": self.should_stop}


def play_against(
    url: str,
    plan: Sequence[PlannedRequest],
    *,
    concurrency: int | None = 2,
    timeout_s: float = 20.0,
    api_key: str | None = None,
    into: Played | None = None,
    **hooks: Any,
) -> Played:
    """Play a plan and return what came of it (also ``into``, for loads that end by raising)."""
    played = Played() if into is None else into
    hooks = {
        "on_record": played.records.append,
        "on_sample": played.samples.append,
        "on_progress": played.progress.append,
        **hooks,
    }
    target = Target(url, "standin", api_key, timeout_s)
    played.outcome = play(plan, target, concurrency=concurrency, clock=Clock(), **hooks)
    return played
