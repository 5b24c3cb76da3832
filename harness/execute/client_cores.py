"""Keeps the client off the cores that the engine's threads are bound to.

Method: vLLM's CPU build says in its log which cores it computes on and which it leaves; while the
load is played, this process runs on the latter. Where the engine left none, that is said: the
latencies then contain the client's work. Not covered: engines that bind no threads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from harness.engines.server_log import cpu_cores
from harness.execute.progress import Progress


@contextlib.contextmanager
def client_cores(log: str, progress: Progress) -> Iterator[None]:
    """Stay on the cores that the engine's log leaves to others, for as long as this is open."""
    cores = cpu_cores(log)
    if cores is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    free = (before - set(cores[0])) & (set(cores[1]) or before)
    if not free:
        progress.warn("engine and client share their cores: latencies contain the client's work")
        yield
        return
    os.sched_setaffinity(0, free)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
