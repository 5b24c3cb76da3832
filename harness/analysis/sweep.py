"""Which loads of a run make a sweep over concurrency: those that differ in nothing else.

Not covered: sweeps over request rates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Fewer levels than these are no sweep.
MIN_LEVELS = 3
#: What may differ within a sweep; ``label`` and ``name`` only tell people.
_FREE = ("concurrency", "num_prompts", "name", "label", "warmup_requests")


def sweep_key(workload: Mapping[str, Any]) -> str | None:
    """A text that stored workloads share if they are one sweep; None for an open loop."""
    if workload.get("concurrency") is None:
        return None
    same = {key: value for key, value in workload.items() if key not in _FREE}
    return json.dumps(same, sort_keys=True, default=str)
