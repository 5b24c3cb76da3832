"""Measures while the machine is otherwise idle, and says so when it was not.

A run waits for a second in which nothing else takes the processors, and is repeated if, while it
lasted, processes other than its own used more than a tenth of a core. Whether that was the case is
a property of the machine, not of the result, so repeating does not choose between results.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

Result = TypeVar("Result")

LIMIT_CORES = 0.1
TRIES = 5


def undisturbed(
    run: Callable[[], Result], helper_pid: int, say: Callable[[str], None], patience_s: float
) -> tuple[Result, float]:
    """Wait up to ``patience_s`` for peace before each try.

    Return the first result taken in peace, or the last, and the cores that others used.
    """
    others = 0.0
    for attempt in range(TRIES):
        _await_idle(patience_s)
        begun, busy_s, own_s = time.monotonic(), _busy_s(), _own_s(helper_pid)
        result = run()
        own_s = _own_s(helper_pid) - own_s
        others = max(0.0, (_busy_s() - busy_s - own_s) / (time.monotonic() - begun))
        if others <= LIMIT_CORES or attempt == TRIES - 1:
            break
        say(f"  disturbed: other processes used {others:.2f} cores; once more")
    return result, others


def _await_idle(patience_s: float) -> None:
    give_up = time.monotonic() + patience_s
    while time.monotonic() < give_up:
        busy_s = _busy_s()
        time.sleep(1.0)
        if _busy_s() - busy_s <= LIMIT_CORES:
            return


def _busy_s() -> float:
    """CPU seconds that the machine has spent on anything since it started."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_s(helper_pid: int) -> float:
    """CPU seconds of this process, of its ended children and of one running helper."""
    helper = psutil.Process(helper_pid).cpu_times()
    ours = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return helper.user + helper.system + sum(use.ru_utime + use.ru_stime for use in ours)
