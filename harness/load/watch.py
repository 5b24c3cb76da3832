"""The client watches itself: how late its event loop runs and how much CPU it takes.

Method: a heartbeat asks to be woken every 10 ms and notes how late it was; five times a second
the worst of these delays and the process's CPU time since the last sample become one
``ClientSample``. A lag of L means that a stamp may be late by up to L; a CPU share near 1 means
that the client, not the server, set the pace.

Not covered: time that the kernel lets arrived bytes wait while another process has the core; it
shows as lag of the heartbeat as well.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness.clock import Clock
from harness.record import ClientSample
from harness.units import Seconds

BEAT_S: Seconds = 0.01
SAMPLE_S: Seconds = 0.2


async def watch(clock: Clock, on_sample: Callable[[ClientSample], None]) -> None:
    """Sample until cancelled."""
    while True:
        start, cpu = clock.now(), time.process_time()
        worst = 0.0
        while clock.now() < start + SAMPLE_S:
            due = clock.now() + BEAT_S
            await asyncio.sleep(BEAT_S)
            worst = max(worst, clock.now() - due)
        now = clock.now()
        share = (time.process_time() - cpu) / (now - start)
        on_sample(ClientSample(t_s=now, loop_lag_s=worst, cpu_share=share))


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep garbage collection short while a load runs.

    A full collection walks every object of every loaded library and would hold up all stamps by
    tens of milliseconds; what exists already is set aside until the load is over.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
