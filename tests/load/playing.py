"""Plays small plans and gathers what the hooks were given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from harness.clock import Clock
from harness.load import LoadOutcome, LoadProgress, Target, play
from harness.record import ClientSample, PlannedRequest, RequestRecord

T = TypeVar("T")


def punctual(attempt: Callable[[], T], fine: Callable[[T], bool]) -> T:
    """The first of five attempts that was fine, or the last: whoever calls asserts on it.

    For what a machine that stalls can only make later. Whatever must hold however late it gets is
    asserted inside the attempt, each time.
    """
    for _ in range(4):
        if fine(found := attempt()):
            return found
    return attempt()


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


class StopAt:
    """A reason to stop, from when so many chunks had come."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.seen = False

    def on_progress(self, progress: LoadProgress) -> None:
        self.seen = self.seen or progress.chunks >= self.chunks

    def should_stop(self) -> str | None:
        return "the server died" if self.seen else None

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
