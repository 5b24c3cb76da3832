"""What this machine's CPU can do at best; run as a process of its own, by the engine's Python.

    python cpu_peaks.py    prints [bytes per second, FLOP per second] as JSON

Method: the fastest of several passes, so that other processes disturb little. Bandwidth: a copy
(read and written) and a sum (read) of memory far larger than most caches, by all cores on the wall
clock and by one core in its own CPU time; the best of the four. Matrix rate: one core's bf16
product in its own CPU time, times the cores, which no real program of several threads exceeds.

It imports nothing of kvbench: the engine's Python need not have it, and torch must never be in
the harness. Not covered: GPUs, whose ceilings come from data sheets.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

#: 256 MiB of float32.
_ELEMENTS = 64 * 1024 * 1024
_MATRIX = 1024
_PASSES = 10


def measure() -> tuple[float, float]:
    """Return memory bandwidth (bytes/s) and bf16 matrix rate (FLOP/s)."""
    import torch

    cores = torch.get_num_threads()
    source = torch.ones(_ELEMENTS, dtype=torch.float32)
    target = torch.empty_like(source)
    left = torch.ones((_MATRIX, _MATRIX), dtype=torch.bfloat16)
    size: int = source.element_size() * _ELEMENTS

    def bandwidth(clock: Callable[[], float]) -> float:
        copied_s = _fastest_s(lambda: target.copy_(source), clock)
        return max(2 * size / copied_s, size / _fastest_s(source.sum, clock))

    with torch.inference_mode():
        together = bandwidth(time.perf_counter)
        torch.set_num_threads(1)
        alone = bandwidth(time.thread_time)
        multiplied_s = _fastest_s(lambda: torch.mm(left, left), time.thread_time)
    return max(together, alone), cores * 2 * _MATRIX**3 / multiplied_s


def _fastest_s(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """The shortest pass: disturbances only ever make one longer."""
    work()
    passes: list[float] = []
    for _ in range(_PASSES):
        start = clock()
        work()
        passes.append(clock() - start)
    return min(passes)


if __name__ == "__main__":
    json.dump(measure(), sys.stdout)
