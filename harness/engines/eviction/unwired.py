"""Stands in for every attention backend that eviction is not wired to: asking for one refuses.

The engine looks a backend class up by name in its module. Where it chooses by itself it passes
over one that can't be imported and takes the next; where one was asked for, the start ends with
the reason.
"""

from __future__ import annotations

import os

from harness.engines.eviction.refusals import EvictionRefused
from harness.specs.eviction import SnapKvRule, rule_from_env

_BACKENDS = "CPU_ATTN, FLASH_ATTN, TRITON_ATTN"


def __getattr__(name: str) -> type:
    if not name.isupper():
        raise AttributeError(name)
    # The rule by score rewrites the cache with the backend's own update; only the CPU's was run.
    by_score = isinstance(rule_from_env(os.environ), SnapKvRule)
    wired = "wired for SnapKV: CPU_ATTN" if by_score else f"wired: {_BACKENDS}"
    what = f"the attention backend {name} is not wired to it ({wired})"
    raise EvictionRefused(f"MLA: {what}" if "MLA" in name else what)
