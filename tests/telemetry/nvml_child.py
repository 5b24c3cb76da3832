"""A process that looks at NVML for test_nvml.py, since a process loads one driver library only.

It reads one JSON question per line and prints one JSON answer per line.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from harness.telemetry.nvml import NvmlSource, device_used_bytes, probe


class Child:
    """Keeps one open source between questions."""

    def __init__(self) -> None:
        self.source: NvmlSource | None = None

    def ask_probe(self) -> Any:
        return asdict(probe())

    def ask_used(self, **options: Any) -> Any:
        return device_used_bytes(**options)

    def ask_open(self, pids: list[int], **options: Any) -> Any:
        self.source = NvmlSource.open(lambda: frozenset(pids), **options)
        return len(self.source.devices)

    def ask_read(self, now: float) -> Any:
        assert self.source is not None
        return [asdict(sample) for sample in self.source.read(now)]

    def ask_problems(self) -> Any:
        assert self.source is not None
        return asdict(self.source.problems)

    def ask_close(self) -> Any:
        assert self.source is not None
        self.source.close()
        return self.source.read(0.0)


def main() -> None:
    child = Child()
    for line in sys.stdin:
        question, visible, options = json.loads(line)
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
        answer = json.dumps(getattr(child, f"ask_{question}")(**options))
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
