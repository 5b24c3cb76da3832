"""The ceilings of this machine's CPU: measured once (``cpu_peaks``) and kept.

Method: the engine's Python runs the measurement in a process of its own; the result is kept in a
JSON file under the machine's name and that Python's path, so that a machine is measured once.
Where it can't be measured (no torch there) there is no ceiling. Not covered: GPUs.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path

from harness.engines import cpu_peaks
from harness.engines.embedded import cache_root
from harness.engines.vllm import engine_python
from harness.record import CpuPeaks
from harness.store import write_whole
from harness.units import Seconds

_LIMIT_S: Seconds = 120.0


def cpu_ceilings(machine: str, cache: Path | None = None) -> CpuPeaks | None:
    """Return the CPU's ceilings, from the cache if this machine was measured before.

    Args:
        machine: what tells this machine from others (CPU name and core count).
        cache: the JSON file; by default in kvbench's cache folder.
    """
    file = cache or cache_root() / "ceilings.json"
    known = _read(file)
    key = f"{machine}, {engine_python()}"
    if _peaks(known.get(key)) is None and (measured := _measure()) is not None:
        known[key] = [measured.bandwidth_bytes_per_s, measured.flops_per_s]
        _write(file, known)
    return _peaks(known.get(key))


def _peaks(stored: object) -> CpuPeaks | None:
    match stored:
        case [float(bandwidth), float(flops)] if bandwidth > 0 and flops > 0:
            return CpuPeaks(bandwidth, flops)
    return None


def _read(file: Path) -> dict[str, object]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Path, known: dict[str, object]) -> None:
    # A cache that can't be kept costs a few seconds at the next bench, and no result.
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(known, indent=2))


def _measure() -> CpuPeaks | None:
    try:
        done = subprocess.run(
            [engine_python(), cpu_peaks.__file__],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=True,
        )
        return _peaks(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
