"""Stands in for every attention backend that eviction is not wired to: asking for one refuses.

The engine looks a backend class up by name in its module. Where it chooses by itself it passes
over one that can't be imported and takes the next; where one was asked for, the start ends with
the reason.
"""

from __future__ import annotations

from harness.engines.eviction.refusals import EvictionRefused

_BACKENDS = "CPU_ATTN, FLASH_ATTN, TRITON_ATTN"


def __getattr__(name: str) -> type:
    if not name.isupper():
        raise AttributeError(name)
    what = f"the attention backend {name} is not wired to it (wired: {_BACKENDS})"
    raise EvictionRefused(f"MLA: {what}" if "MLA" in name else what)
