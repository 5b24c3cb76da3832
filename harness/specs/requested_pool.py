"""The bytes that a server is asked to set aside for its KV pool, by its flag or its environment.

Method: ``kv_cache_memory_bytes`` if it is given. On the CPU ``VLLM_CPU_KVCACHE_SPACE``, in whole
GiB, comes before it: the engine puts it in the flag's place. Source: vLLM 0.32.0,
``platforms/cpu.py`` (``check_and_update_config``). A plan, a bench and a report all read a request
here. Not covered: what the engine then grants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from harness.units import GIB, Bytes

POOL_FLAG = "kv_cache_memory_bytes"
CPU_POOL_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"


def requested_pool_bytes(
    flags: Mapping[str, Any], env: Mapping[str, str], device: Literal["cpu", "cuda"]
) -> Bytes | None:
    """Bytes of the pool that one GPU (or the CPU) is asked for; None if nobody asks for any."""
    space = _whole_gib(env.get(CPU_POOL_VARIABLE)) if device == "cpu" else None
    if space is not None:
        return space
    flag = flags.get(POOL_FLAG)
    return flag if isinstance(flag, int) and not isinstance(flag, bool) else None


def _whole_gib(text: str | None) -> Bytes | None:
    """The engine reads an integer and does not start with anything else."""
    try:
        count = int(text) if text else 0
    except ValueError:
        return None
    return count * GIB if count > 0 else None
