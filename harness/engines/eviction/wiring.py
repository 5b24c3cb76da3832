"""Registers the parts of the plugin with the engine; loaded inside vLLM processes only.

Three public seams are used: ``register_backend`` (backend classes over the stock ones),
``KVCacheSpecRegistry`` (our spec with its manager) and ``AttentionBackend.customize_spec``. The
registry fills itself with the engine's own specs only while it is empty, so it is made to do so
first; otherwise every stock spec would be missing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import vllm
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from harness.engines.eviction.manager import SinkWindowManager
from harness.engines.eviction.refusals import check_version
from harness.engines.eviction.snapkv.manager import ScoredManager
from harness.engines.eviction.snapkv.spec import ScoredSpec
from harness.engines.eviction.spec import SinkWindowSpec
from harness.specs.eviction import SnapKvRule, rule_from_env

_ROOM = "harness.engines.eviction"
#: The backends whose kernels take the shortened tables unchanged.
WIRED = {
    "CPU_ATTN": f"{_ROOM}.cpu_attn.EvictingCPUBackend",
    "FLASH_ATTN": f"{_ROOM}.flash_attn.EvictingFlashBackend",
    "TRITON_ATTN": f"{_ROOM}.triton_attn.EvictingTritonBackend",
}
#: The same for the rule by score.
WIRED_SNAPKV = {"CPU_ATTN": f"{_ROOM}.snapkv.cpu_attn.ScoringCPUBackend"}
#: Tags that stand for no paged attention of their own.
_LEFT_ALONE = ("NO_ATTENTION", "TORCH_SDPA", "CUSTOM")


def install() -> None:
    """Register backends, spec and manager in this process.

    Raises:
        InputError: ``KVBENCH_EVICTION`` holds no rule.
        EvictionRefused: this engine version was not tested.
    """
    check_version(vllm.__version__)
    by_score = isinstance(rule_from_env(os.environ), SnapKvRule)
    _register_backends(WIRED_SNAPKV if by_score else WIRED)
    _register_specs()


def _register_backends(wired: Mapping[str, str]) -> None:
    for backend in AttentionBackendEnum:
        if backend.name not in _LEFT_ALONE:
            # Any other backend would serve full attention without a word.
            register_backend(backend, wired.get(backend.name, f"{_ROOM}.unwired.{backend.name}"))


def _register_specs() -> None:
    KVCacheSpecRegistry._ensure_registered()
    KVCacheSpecRegistry.register(ScoredSpec, ScoredManager, uniform_type_base_spec=ScoredSpec)
    KVCacheSpecRegistry.register(
        SinkWindowSpec, SinkWindowManager, uniform_type_base_spec=SinkWindowSpec
    )
