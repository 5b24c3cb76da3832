"""The door: plays a plan against a server and hands on every record as it is finished.

Method: warm-ups first, then the measured phase; the bounds of the latter are the outcome. With
one process the load runs in an event loop of its own right here; with more, see ``workers``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress

from harness.clock import Clock
from harness.load.player import Part, Player
from harness.load.target import LoadOutcome, LoadProgress, Target
from harness.load.watch import SAMPLE_S, quiet_collector, watch
from harness.load.wire import open_wire
from harness.load.workers import play_with_workers
from harness.record import ClientSample, Phase, PlannedRequest, RequestRecord


def play(
    plan: Sequence[PlannedRequest],
    target: Target,
    *,
    concurrency: int | None,
    clock: Clock,
    on_record: Callable[[RequestRecord], None],
    on_sample: Callable[[ClientSample], None] = lambda _: None,
    on_progress: Callable[[LoadProgress], None] | None = None,
    should_stop: Callable[[], str | None] = lambda: None,
    load_workers: int = 1,
) -> LoadOutcome:
    """Play the warm-ups, then the measured requests; return when all of them have ended.

    Args:
        plan: what to send; see ``harness.workload.plan``.
        target: the server.
        concurrency: slots of the closed loop; None plays the plan's due times (open loop).
        clock: the trial's clock; every time in records and samples is on it.
        on_record: called in this thread as each request ends, in order of ending. If it raises,
            the load is stopped and the error raised here.
        on_sample: called five times a second (by each worker) with the client's own state.
        on_progress: called five times a second.
        should_stop: asked five times a second; a reason ends the load at once, the requests in
            flight being recorded with the reason as their error.
        load_workers: processes that share the load.

    Raises:
        KeyboardInterrupt: after the requests in flight were recorded.
    """
    hooks = (on_record, on_sample, on_progress, should_stop)
    if load_workers > 1:
        return play_with_workers(plan, target, concurrency, clock, load_workers, *hooks)
    return asyncio.run(_play_here(plan, target, concurrency, clock, *hooks))


async def _play_here(
    plan: Sequence[PlannedRequest],
    target: Target,
    concurrency: int | None,
    clock: Clock,
    on_record: Callable[[RequestRecord], None],
    on_sample: Callable[[ClientSample], None],
    on_progress: Callable[[LoadProgress], None] | None,
    should_stop: Callable[[], str | None],
) -> LoadOutcome:
    async with AsyncExitStack() as stack:
        wire = await stack.enter_async_context(open_wire(target, clock))
        player = Player(wire, target, clock, on_record)
        player.prepare(plan)
        stack.enter_context(quiet_collector())
        watchers = [
            asyncio.create_task(watch(clock, on_sample)),
            asyncio.create_task(_attend(player, on_progress, should_stop)),
        ]
        try:
            await player.play(_part("warmup", plan, concurrency or 1, clock))
            if player.stop_reason is not None:
                return LoadOutcome(None, None, player.stop_reason)
            part = _part("measured", plan, concurrency, clock)
            await player.play(part)
            outcome = LoadOutcome(part.start_s, clock.now(), player.stop_reason)
            _show_progress(player, on_progress)
            return outcome
        finally:
            await _end(watchers)


def _part(
    phase: Phase, plan: Sequence[PlannedRequest], concurrency: int | None, clock: Clock
) -> Part:
    requests = [request for request in plan if request.phase == phase]
    return Part(phase, requests, concurrency, clock.now(), itertools.count().__next__)


async def _attend(
    player: Player,
    on_progress: Callable[[LoadProgress], None] | None,
    should_stop: Callable[[], str | None],
) -> None:
    while True:
        if (reason := should_stop()) is not None:
            player.stop(reason)
        _show_progress(player, on_progress)
        await asyncio.sleep(SAMPLE_S)


def _show_progress(player: Player, on_progress: Callable[[LoadProgress], None] | None) -> None:
    if on_progress is not None and (progress := player.progress()) is not None:
        on_progress(progress)


async def _end(watchers: Sequence[asyncio.Task[None]]) -> None:
    for watcher in watchers:
        watcher.cancel()
    for watcher in watchers:
        # A hook that raised ended its watcher; that is raised here rather than lost.
        with suppress(asyncio.CancelledError):
            await watcher
