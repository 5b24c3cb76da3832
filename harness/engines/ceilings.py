"""What this machine's CPU can do at best, measured once with torch and kept.

Method: the fastest of several passes over memory far larger than any cache (a copy, counted as
read and written, and a sum, which only reads: the better of the two), and of a large bf16 matrix
product, with all cores. The result is kept in a JSON file beside the machine's name, so that it
is measured once per machine. Not covered: GPUs, whose ceilings come from data sheets.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from harness.engines.embedded import cache_root
from harness.errors import KvbenchError
from harness.theory.roofline import Ceilings
from harness.units import Seconds

#: Far beyond any cache, far below any machine's memory.
_COPY_ELEMENTS = 64 * 1024 * 1024
_MATRIX = 2048
_PASSES = 5


def cpu_ceilings(machine: str, cache: Path | None = None) -> Ceilings:
    """Return the CPU's ceilings, from the cache if this machine was measured before.

    Args:
        machine: what tells this machine from others (CPU name and core count).
        cache: the JSON file; by default in the user's cache folder.

    Raises:
        KvbenchError: torch is not installed here.
    """
    file = cache or cache_root() / "ceilings.json"
    known = _read(file)
    if machine not in known:
        known[machine] = _measure()
        _write(file, known)
    bandwidth, flops = known[machine]
    return Ceilings(machine, bandwidth, flops, "measured here with torch")


def _read(file: Path) -> dict[str, list[float]]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Path, known: dict[str, list[float]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(f".{os.getpid()}.tmp")
    beside.write_text(json.dumps(known, indent=2), encoding="utf-8")
    beside.replace(file)


def _measure() -> list[float]:
    try:
        import torch
    except ImportError:
        raise KvbenchError(
            "torch is not installed, so this CPU's ceilings can't be measured",
            next_move="run in the environment that serves the models",
        ) from None
    source = torch.ones(_COPY_ELEMENTS, dtype=torch.float32)
    target = torch.empty_like(source)
    left = torch.ones((_MATRIX, _MATRIX), dtype=torch.bfloat16)
    with torch.inference_mode():
        copied = _fastest(lambda: target.copy_(source))
        summed = _fastest(source.sum)
        multiplied = _fastest(lambda: torch.mm(left, left))
    size = source.element_size() * _COPY_ELEMENTS
    return [max(2 * size / copied, size / summed), 2 * _MATRIX**3 / multiplied]


def _fastest(work: Callable[[], object]) -> Seconds:
    """The shortest pass: disturbances only ever make one longer."""
    work()
    passes: list[Seconds] = []
    for _ in range(_PASSES):
        start = time.perf_counter()
        work()
        passes.append(time.perf_counter() - start)
    return min(passes)
