"""Spreads a load over processes when one can't drive it, and merges their records.

Method: each worker is a spawned process with its own client and event loop. In a closed loop the
workers share one queue (a counter in shared memory) and split the slots; in an open loop worker
k of n sends every n-th request when it is due. All stamp with ``time.monotonic``, which the
processes of a machine share, so records are merged without translation. The parent keeps the
phases together, calls the hooks and decides when to stop.

A worker ignores Ctrl-C (the parent tells it to stop, so that its records still arrive) and ends
by itself when the parent is gone. Not covered: workers on other machines.
"""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

from harness.clock import Clock
from harness.load.player import Part, Player
from harness.load.target import LoadOutcome, LoadProgress, Target
from harness.load.watch import SAMPLE_S, quiet_collector, watch
from harness.load.wire import open_wire
from harness.record import ClientSample, Phase, PlannedRequest, RequestRecord
from harness.units import Seconds

# Between the word "go" and the first request, so that it has reached every worker.
_HEAD_START_S: Seconds = 0.05
# How long workers may take to hand over the records of what they were told to stop.
_STOP_GRACE_S: Seconds = 5.0


@dataclass(frozen=True, slots=True)
class _Share:
    """What one worker is told at its start."""

    worker: int
    workers: int
    plan: tuple[PlannedRequest, ...]
    target: Target
    concurrency: int | None
    clock: Clock
    tickets: dict[Phase, Any]


@dataclass(frozen=True, slots=True)
class _Go:
    phase: Phase
    start_s: Seconds


@dataclass(frozen=True, slots=True)
class _Stop:
    reason: str


@dataclass(frozen=True, slots=True)
class _Ready:
    pass


@dataclass(frozen=True, slots=True)
class _PhaseEnded:
    end_s: Seconds


_FromWorker = RequestRecord | ClientSample | LoadProgress | _Ready | _PhaseEnded


def play_with_workers(
    plan: Sequence[PlannedRequest],
    target: Target,
    concurrency: int | None,
    clock: Clock,
    load_workers: int,
    on_record: Callable[[RequestRecord], None],
    on_sample: Callable[[ClientSample], None],
    on_progress: Callable[[LoadProgress], None] | None,
    should_stop: Callable[[], str | None],
) -> LoadOutcome:
    """Play the plan with so many processes; the hooks are called in this one."""
    crew = _Crew(clock, on_record, on_sample, on_progress, should_stop)
    try:
        crew.hire(plan, target, concurrency, load_workers)
        crew.play("warmup")
        if crew.stop_reason is not None:
            return LoadOutcome(None, None, crew.stop_reason)
        start_s = crew.play("measured")
        return LoadOutcome(start_s, crew.phase_end_s, crew.stop_reason)
    except KeyboardInterrupt:
        crew.wind_up("interrupted")
        raise
    finally:
        crew.dismiss()


@dataclass(slots=True)
class _Crew:
    """The workers as the parent sees them."""

    clock: Clock
    on_record: Callable[[RequestRecord], None]
    on_sample: Callable[[ClientSample], None]
    on_progress: Callable[[LoadProgress], None] | None
    should_stop: Callable[[], str | None]
    processes: list[BaseProcess] = field(default_factory=list)
    pipes: list[Connection] = field(default_factory=list)
    busy: set[Connection] = field(default_factory=set)
    latest: dict[Connection, LoadProgress] = field(default_factory=dict)
    totals: Counter[Phase] = field(default_factory=Counter)
    phase_end_s: Seconds = 0.0
    stop_reason: str | None = None

    def hire(
        self,
        plan: Sequence[PlannedRequest],
        target: Target,
        concurrency: int | None,
        workers: int,
    ) -> None:
        self.totals.update(request.phase for request in plan)
        context = mp.get_context("spawn")
        tickets: dict[Phase, Any] = {p: context.Value("q", 0) for p in ("warmup", "measured")}
        for worker in range(workers):
            ours, theirs = context.Pipe()
            share = _Share(worker, workers, tuple(plan), target, concurrency, self.clock, tickets)
            process = context.Process(target=_work, args=(share, theirs), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)
        self._await_all()

    def play(self, phase: Phase) -> Seconds:
        """Have all workers play a phase; return when it began."""
        start_s = self.clock.now() + _HEAD_START_S
        for pipe in self.pipes:
            pipe.send(_Go(phase, start_s))
        self._await_all()
        return start_s

    def wind_up(self, reason: str) -> None:
        """Stop the workers and take in what they still have to tell."""
        self._stop(reason)
        deadline_s = self.clock.now() + _STOP_GRACE_S
        while self.busy and self.clock.now() < deadline_s:
            self._take_in()

    def dismiss(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(_STOP_GRACE_S)
            if process.is_alive():
                process.kill()
                process.join()

    def _await_all(self) -> None:
        self.busy = set(self.pipes)
        self.latest.clear()
        next_look_s = self.clock.now()
        while self.busy:
            self._take_in()
            if self.clock.now() >= next_look_s:
                next_look_s = self.clock.now() + SAMPLE_S
                self._look_around()
        self._show_progress()

    def _look_around(self) -> None:
        if self.stop_reason is None and (reason := self.should_stop()) is not None:
            self._stop(reason)
        self._show_progress()

    def _show_progress(self) -> None:
        if self.on_progress is not None and self.latest:
            parts = tuple(self.latest.values())
            self.on_progress(_sum(parts, self.totals[parts[0].phase]))

    def _stop(self, reason: str) -> None:
        if self.stop_reason is None:
            self.stop_reason = reason
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send(_Stop(reason))

    def _take_in(self) -> None:
        for pipe in cast("list[Connection]", wait(list(self.busy), timeout=SAMPLE_S)):
            try:
                self._take(pipe, pipe.recv())
            except (EOFError, ConnectionResetError):
                # Killed from outside: the records of what it had in flight died with it.
                self.busy.discard(pipe)
                self.pipes.remove(pipe)
                self._stop("a load worker ended unexpectedly")

    def _take(self, pipe: Connection, message: _FromWorker) -> None:
        match message:
            case RequestRecord():
                self.on_record(message)
            case ClientSample():
                self.on_sample(message)
            case LoadProgress():
                self.latest[pipe] = message
            case _PhaseEnded(end_s):
                self.phase_end_s = max(self.phase_end_s, end_s)
                self.busy.discard(pipe)
            case _Ready():
                self.busy.discard(pipe)


def _sum(parts: Sequence[LoadProgress], total: int) -> LoadProgress:
    return LoadProgress(
        t_s=max(part.t_s for part in parts),
        phase=parts[0].phase,
        requests_total=total,
        requests_done=sum(part.requests_done for part in parts),
        requests_failed=sum(part.requests_failed for part in parts),
        requests_in_flight=sum(part.requests_in_flight for part in parts),
        chunks=sum(part.chunks for part in parts),
        output_tokens=sum(part.output_tokens for part in parts),
    )


def _work(share: _Share, pipe: Connection) -> None:
    """The worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_serve(share, pipe))


async def _serve(share: _Share, pipe: Connection) -> None:
    orders: asyncio.Queue[_Go | None] = asyncio.Queue()

    def tell(message: _FromWorker) -> None:
        # If the parent is gone, _listen finds out and ends the worker.
        with suppress(OSError):
            pipe.send(message)

    async with AsyncExitStack() as stack:
        wire = await stack.enter_async_context(open_wire(share.target, share.clock))
        player = Player(wire, share.target, share.clock, tell)
        player.prepare(share.plan)
        stack.enter_context(quiet_collector())
        loop = asyncio.get_running_loop()
        loop.add_reader(pipe.fileno(), _listen, pipe, orders, player)
        watchers = [
            asyncio.create_task(watch(share.clock, tell)),
            asyncio.create_task(_report(player, tell)),
        ]
        tell(_Ready())
        while (order := await orders.get()) is not None:
            await player.play(_part(share, order))
            if (progress := player.progress()) is not None:
                tell(progress)
            tell(_PhaseEnded(share.clock.now()))
        for watcher in watchers:
            watcher.cancel()


def _listen(pipe: Connection, orders: asyncio.Queue[_Go | None], player: Player) -> None:
    try:
        message = pipe.recv()
    except (EOFError, OSError):
        player.stop("the parent process is gone")
        orders.put_nowait(None)
        asyncio.get_running_loop().remove_reader(pipe.fileno())
        return
    if isinstance(message, _Stop):
        player.stop(message.reason)
    else:
        orders.put_nowait(message)


async def _report(player: Player, tell: Callable[[_FromWorker], None]) -> None:
    while True:
        if (progress := player.progress()) is not None:
            tell(progress)
        await asyncio.sleep(SAMPLE_S)


def _part(share: _Share, order: _Go) -> Part:
    requests = [request for request in share.plan if request.phase == order.phase]
    concurrency = share.concurrency
    if concurrency is None and order.phase == "warmup":
        concurrency = 1
    if concurrency is None:
        return Part(
            order.phase,
            requests[share.worker :: share.workers],
            None,
            order.start_s,
            _no_ticket,
        )
    slots = concurrency // share.workers + (share.worker < concurrency % share.workers)
    return Part(order.phase, requests, slots, order.start_s, _taker(share.tickets[order.phase]))


def _taker(counter: Any) -> Callable[[], int]:
    def take() -> int:
        with counter.get_lock():
            position = int(counter.value)
            counter.value = position + 1
        return position

    return take


def _no_ticket() -> int:
    raise AssertionError("an open loop takes no tickets")
