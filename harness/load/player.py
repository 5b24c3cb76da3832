"""Keeps requests going in one process: closed loops and open loops, to the end or to a stop.

Method: in a closed loop ``concurrency`` slots take the next request whenever they are free; in
an open loop each request goes out when it is due, however many are still unanswered. Every
request that was begun becomes exactly one record, whatever happens to it.

Not covered: telemetry of the server, and any arithmetic on the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from harness.clock import Clock
from harness.load.events import Answer
from harness.load.target import LoadProgress, Target
from harness.load.wire import RequestFailed, Sending, Wire, encode_request
from harness.record import Phase, PlannedRequest, RequestRecord
from harness.units import Seconds

#: A slot whose request failed waits this long before it takes the next one, so that a server
#: that died is noticed before the rest of the plan is thrown at a closed port.
PAUSE_AFTER_FAILURE_S: Seconds = 0.25
#: How the error of a request begins that was not answered whole within the time limit.
TIMED_OUT = "timeout:"


@dataclass(frozen=True, slots=True)
class Part:
    """One phase of a load, or one process's share of it.

    ``concurrency`` None means an open loop from ``start_s`` on. ``ticket`` yields the position
    of the next request of a closed loop and is shared by all who play the phase.
    """

    phase: Phase
    requests: Sequence[PlannedRequest]
    concurrency: int | None
    start_s: Seconds
    ticket: Callable[[], int]


class Player:
    """Plays parts against one server and hands on a record of each request."""

    def __init__(
        self,
        wire: Wire,
        target: Target,
        clock: Clock,
        on_record: Callable[[RequestRecord], None],
    ) -> None:
        self._wire = wire
        self._target = target
        self._clock = clock
        self._on_record = on_record
        self._bodies: dict[int, bytes] = {}
        self._answers: dict[int, Answer] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._fault: BaseException | None = None
        self._chunks = self._done = self._failed = self._output_tokens = 0
        self._part: Part | None = None
        self._turnstile = asyncio.Lock()
        self.stop_reason: str | None = None

    def prepare(self, requests: Sequence[PlannedRequest]) -> None:
        """Encode the bodies beforehand, so that no request waits for another's encoding."""
        for request in requests:
            self._bodies[request.index] = encode_request(request, self._target)

    async def play(self, part: Part) -> None:
        """Play one part to its end, or until ``stop`` was called; all records are out then."""
        self._part = part
        self._chunks = self._done = self._failed = self._output_tokens = 0
        # Workers are given a moment a little ahead, so that all of them begin together.
        await asyncio.sleep(max(0.0, part.start_s - self._clock.now()))
        if self.stop_reason is not None:
            return
        slots = min(part.concurrency or 0, len(part.requests))
        for _ in range(slots):
            self._spawn(self._slot(part))
        if part.concurrency is None:
            self._spawn(self._arrivals(part))
        try:
            await self._all_ended()
        except asyncio.CancelledError:
            self.stop("interrupted")
            await self._all_ended()
            raise
        if self._fault is not None:
            raise self._fault

    def stop(self, reason: str) -> None:
        """End the load: requests in flight are recorded with this reason as their error."""
        if self.stop_reason is None:
            self.stop_reason = reason
        for task in self._tasks:
            task.cancel()

    def progress(self) -> LoadProgress | None:
        """How far the part in play has come; None before the first."""
        if self._part is None:
            return None
        flying = sum(len(answer.chunk_times_s) for answer in self._answers.values())
        return LoadProgress(
            t_s=self._clock.now(),
            phase=self._part.phase,
            requests_total=len(self._part.requests),
            requests_done=self._done,
            requests_failed=self._failed,
            requests_in_flight=len(self._answers),
            chunks=self._chunks + flying,
            output_tokens=self._output_tokens,
        )

    async def _all_ended(self) -> None:
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def _spawn(self, coroutine: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            # A record that couldn't be kept, or a mistake of ours: the load can't go on.
            self._fault = self._fault or fault
            self.stop(f"the client failed: {fault}")

    async def _slot(self, part: Part) -> None:
        free_s = part.start_s
        while (position := part.ticket()) < len(part.requests):
            record = await self._request(part.requests[position], free_s)
            if record.error is None and record.finished_s is not None:
                # Not now: what we do between an answer and the next request is our own lag.
                free_s = record.finished_s
            else:
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
                free_s = self._clock.now()

    async def _arrivals(self, part: Part) -> None:
        for request in part.requests:
            due_s = part.start_s + (request.planned_send_s or 0.0)
            if (wait_s := due_s - self._clock.now()) > 0:
                await asyncio.sleep(wait_s)
            self._spawn(self._request(request, due_s))

    async def _request(self, request: PlannedRequest, planned_s: Seconds) -> RequestRecord:
        # One request is begun per turn of the loop, so that many due at once don't keep the bytes
        # that arrive meanwhile from being stamped.
        async with self._turnstile:
            await asyncio.sleep(0)
        begun_s = self._clock.now()
        sending = Sending()
        answer = Answer(self._target.api_key, request.output_tokens)
        self._answers[request.index] = answer
        error: str | None = None
        try:
            async with asyncio.timeout(self._target.timeout_s):
                await self._wire.complete(self._bodies.pop(request.index), sending, answer)
        except TimeoutError:
            error = f"{TIMED_OUT} no whole answer after {self._target.timeout_s:g} s"
        except RequestFailed as fault:
            error = str(fault)
        except BaseException:
            # Stopped or interrupted; the request was sent, so it is recorded before we go.
            self._keep(request, planned_s, begun_s, sending, answer, self._stopped())
            raise
        return self._keep(request, planned_s, begun_s, sending, answer, answer.error or error)

    def _stopped(self) -> str:
        return self.stop_reason or "interrupted"

    def _keep(
        self,
        request: PlannedRequest,
        planned_s: Seconds,
        begun_s: Seconds,
        sending: Sending,
        answer: Answer,
        error: str | None,
    ) -> RequestRecord:
        times = tuple(answer.chunk_times_s)
        record = RequestRecord(
            index=request.index,
            phase=request.phase,
            prompt_tokens_planned=len(request.prompt_token_ids),
            output_tokens_planned=request.output_tokens,
            planned_send_s=planned_s,
            sent_s=begun_s if sending.sent_s is None else sending.sent_s,
            first_chunk_s=times[0] if times else None,
            last_chunk_s=times[-1] if times else None,
            finished_s=self._clock.now() if answer.ended_s is None else answer.ended_s,
            chunk_times_s=times,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            cached_prompt_tokens=answer.cached_prompt_tokens,
            finish_reason=answer.finish_reason,
            error=error,
            text=answer.text,
        )
        del self._answers[request.index]
        self._chunks += len(times)
        self._done += 1
        self._failed += error is not None
        self._output_tokens += answer.output_tokens or 0
        self._on_record(record)
        return record
