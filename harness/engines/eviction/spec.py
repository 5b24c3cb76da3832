"""The KV-cache spec of a layer whose middle is evicted; loaded inside vLLM processes only.

It derives from the engine's sliding-window spec because the engine asks for that very class where
it sizes the pool by the window instead of ``max_model_len`` and hands the manager its admission
cap. What it adds: sinks, the unit in which tokens are evicted, and the sinks' share of the cap.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    SlidingWindowSpec,
    replace_as,
)

from harness.engines.eviction.refusals import EvictionRefused
from harness.specs.eviction import AnyRule, EvictionRule, SnapKvRule, rule_from_env

#: Fields of the full-attention spec that this one does not have.
_FULL_ONLY = ("sliding_window", "attention_chunk_size", "non_causal")


@dataclass(frozen=True, kw_only=True)
class SinkWindowSpec(SlidingWindowSpec):
    """Blocks kept: those of the first ``sink_tokens`` and those of the recent window.

    ``evict_unit`` is the allocator's block in tokens. It outlives the copies with a smaller
    ``block_size`` that the engine makes where a kernel splits blocks, so scheduler and worker
    count their boundary in the same unit.
    """

    sink_tokens: int
    evict_unit: int

    @property
    def sink_blocks(self) -> int:
        """Allocator blocks that hold the sinks."""
        return cdiv(self.sink_tokens, self.evict_unit)

    @property
    def prefix_cacheable(self) -> bool:
        """No: a cached prefix would have to hold sinks and window but nothing between."""
        return False

    def max_admission_blocks_per_request(
        self, max_in_flight_tokens: int, max_model_len: int
    ) -> int:
        """The window's cap and the sinks' blocks, never more than the whole context needs."""
        window = super().max_admission_blocks_per_request(max_in_flight_tokens, max_model_len)
        return min(window + self.sink_blocks, cdiv(max_model_len, self.block_size))

    def is_uniform_with_collection(self, kv_cache_specs: dict[str, KVCacheSpec]) -> bool:
        """Whether all layers evict alike: a plain window must not share these blocks."""
        return all(
            isinstance(spec, SinkWindowSpec)
            and (spec.sink_tokens, spec.sliding_window) == (self.sink_tokens, self.sliding_window)
            for spec in kv_cache_specs.values()
        )


def active_rule() -> EvictionRule:
    """The rule of sinks and window in force in this process.

    Raises:
        EvictionRefused: the variable changed though the plugin was installed under it.
    """
    rule = _active()
    if not isinstance(rule, EvictionRule):
        raise EvictionRefused(f"the rule became {rule} after the engine's start")
    return rule


def active_snapkv() -> SnapKvRule:
    """The rule by score in force in this process.

    Raises:
        EvictionRefused: the variable changed though the plugin was installed under it.
    """
    rule = _active()
    if not isinstance(rule, SnapKvRule):
        raise EvictionRefused(f"the rule became {rule} after the engine's start")
    return rule


def _active() -> AnyRule:
    rule = rule_from_env(os.environ)
    if rule is None:
        raise EvictionRefused("the variable was unset after the engine's start")
    return rule


def evicting_spec(spec: AttentionSpec, rule: EvictionRule) -> AttentionSpec:
    """The spec of a full-attention layer under the rule; layers with a window keep theirs.

    Raises:
        EvictionRefused: a kind of full attention that was not tested.
    """
    if not isinstance(spec, FullAttentionSpec):
        return spec
    if type(spec) is not FullAttentionSpec or spec.non_causal:
        raise EvictionRefused(f"not tested with layers of kind {type(spec).__name__}")
    if spec.sliding_window is not None or spec.attention_chunk_size is not None:
        return spec
    return replace_as(
        spec,
        SinkWindowSpec,
        drop=_FULL_ONLY,
        sliding_window=rule.window,
        sink_tokens=rule.sinks,
        evict_unit=spec.block_size,
    )
