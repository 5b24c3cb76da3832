"""Answers what the reference engine's child is asked, without a model: a start costs no torch.

The same JSON lines as ``harness/engines/reference_child.py``; ``program`` writes it as the Python
that ``KVBENCH_REFERENCE_PYTHON`` may name.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

#: Before every token: long enough for whoever ends a child in the middle of an answer.
PAUSE_S = 0.05


def program(folder: Path) -> Path:
    """An executable that takes the place of the Python that has transformers."""
    file = folder / "reference-python"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{Path(__file__).resolve()}" "$@"\n')
    file.chmod(0o755)
    return file


def tell(event: dict[str, Any]) -> None:
    """Write an event."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Be ready, then answer every request with token 7, until the input ends."""
    sys.stdin.readline()
    said = {"transformers": "0", "torch": "0", "dtype": "float32", "device": "cpu"}
    tell({"ready": {**said, "threads": 1, "attention": "sdpa", "weights_bytes": 1024}})
    for line in sys.stdin:
        request = json.loads(line)
        for number in range(request["output_tokens"]):
            held = {"sequence_tokens": len(request["prompt"]) + number, "cache_bytes": 0}
            time.sleep(PAUSE_S)
            tell({"token": 7, "t": time.monotonic(), **held})
        tell({"done": request["index"], "prompt_tokens": len(request["prompt"])})


if __name__ == "__main__":
    main()
