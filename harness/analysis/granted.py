"""What pool a server was granted, read from whoever says so most exactly.

Method: bytes of the KV pool come from ``cache_config_info``, else from what the server was asked
for (``specs.requested_pool``), else from the log (0.01 GiB precision). Not covered: predictions,
which never stand in for a grant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from harness.analysis.results import KvFigures
from harness.record import GrantedKv, Run
from harness.specs.requested_pool import requested_pool_bytes
from harness.units import GIB, Bytes

_GIB = r"(-?\d+(?:\.\d+)?)"
LOG_FIGURES = {
    "weights": re.compile(rf"Model loading took {_GIB} GiB"),
    "consumed": re.compile(rf"{_GIB} GiB for consumed memory"),
    "activation": re.compile(rf"{_GIB} GiB for peak activation"),
    "graphs": re.compile(rf"Graph capturing finished in \S+ secs, took {_GIB} GiB"),
    "kv_pool": re.compile(rf"Available KV cache memory: {_GIB} GiB"),
}


def read_gib(lines: Iterable[str], name: str) -> Bytes | None:
    """The last figure that the log gives under one of the names known here, in bytes."""
    found = [match[1] for line in lines for match in LOG_FIGURES[name].finditer(line)]
    return round(float(found[-1]) * GIB) if found else None


def granted_pool_bytes(run: Run) -> Bytes | None:
    """Bytes of the KV pool on one GPU; None if nobody says."""
    if run.server is None:
        return None
    if run.server.granted.kv_cache_memory_bytes is not None:
        return run.server.granted.kv_cache_memory_bytes
    device: Literal["cpu", "cuda"] = "cpu" if run.environment.profile == "cpu" else "cuda"
    asked = requested_pool_bytes(run.trial.server_flags, run.server.env, device)
    return read_gib(run.server.log_kv_lines, "kv_pool") if asked is None else asked


def pool_slots(granted: GrantedKv) -> int | None:
    """Blocks × block size, the null block included: the tokens that the pool was cut for."""
    if granted.num_gpu_blocks is None or granted.block_size is None:
        return None
    return granted.num_gpu_blocks * granted.block_size


def granted_figures(run: Run) -> KvFigures:
    """The granted pool. Bytes per token are bytes over slots, so they hold up to one block."""
    granted = run.server.granted if run.server is not None else GrantedKv()
    size, slots = granted_pool_bytes(run), pool_slots(granted)
    return KvFigures(
        kv_bytes_per_token=None if size is None or not slots else size / slots,
        block_size=granted.block_size,
        num_blocks=granted.num_gpu_blocks,
        kv_cache_tokens=granted.kv_cache_tokens,
        max_concurrency=granted.max_concurrency,
        kv_cache_memory_bytes=size,
    )
