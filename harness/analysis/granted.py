"""What pool a server was granted, read from whoever says so most exactly.

Method: bytes of the KV pool come from ``cache_config_info``, else from the flag that set them,
else from the environment variable of the CPU build, else from the log (0.01 GiB precision). Not
covered: predictions, which never stand in for a grant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from harness.analysis.results import KvFigures
from harness.record import GrantedKv, Run
from harness.units import GIB, Bytes

_GIB = r"(-?\d+(?:\.\d+)?)"
LOG_FIGURES = {
    "weights": re.compile(rf"Model loading took {_GIB} GiB"),
    "consumed": re.compile(rf"{_GIB} GiB for consumed memory"),
    "activation": re.compile(rf"{_GIB} GiB for peak activation"),
    "graphs": re.compile(rf"Graph capturing finished in \S+ secs, took {_GIB} GiB"),
    "kv_pool": re.compile(rf"Available KV cache memory: {_GIB} GiB"),
}

_CPU_POOL = "VLLM_CPU_KVCACHE_SPACE"


def read_gib(lines: Iterable[str], name: str) -> Bytes | None:
    """The last figure that the log gives under one of the names known here, in bytes."""
    found = [match[1] for line in lines for match in LOG_FIGURES[name].finditer(line)]
    return round(float(found[-1]) * GIB) if found else None


def pool_bytes(run: Run) -> Bytes | None:
    """Bytes of the KV pool on one GPU; None if nobody says."""
    if run.server is None:
        return None
    if run.server.granted.kv_cache_memory_bytes is not None:
        return run.server.granted.kv_cache_memory_bytes
    flag = run.trial.server_flags.get("kv_cache_memory_bytes")
    if isinstance(flag, int) and not isinstance(flag, bool):
        return flag
    if (space := _number(run.server.env.get(_CPU_POOL))) is not None:
        return round(space * GIB)
    return read_gib(run.server.log_kv_lines, "kv_pool")


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else 0.0
    except ValueError:
        return None
    return value if value > 0 else None


def pool_slots(granted: GrantedKv) -> int | None:
    """Blocks × block size, the null block included: the tokens that the pool was cut for."""
    if granted.num_gpu_blocks is None or granted.block_size is None:
        return None
    return granted.num_gpu_blocks * granted.block_size


def granted_figures(run: Run) -> KvFigures:
    """The granted pool. Bytes per token are bytes over slots, so they hold up to one block."""
    granted = run.server.granted if run.server is not None else GrantedKv()
    size, slots = pool_bytes(run), pool_slots(granted)
    return KvFigures(
        kv_bytes_per_token=None if size is None or not slots else size / slots,
        block_size=granted.block_size,
        num_blocks=granted.num_gpu_blocks,
        kv_cache_tokens=granted.kv_cache_tokens,
        max_concurrency=granted.max_concurrency,
        kv_cache_memory_bytes=size,
    )
