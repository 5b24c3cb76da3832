"""The KV-cache spec of a layer whose prompts are cut by score; inside vLLM processes only.

It derives from the engine's full-attention spec: until a prompt is computed all its blocks are
needed, so the pool is sized as for full attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from vllm.utils.math_utils import round_up
from vllm.v1.kv_cache_interface import AttentionSpec, FullAttentionSpec, replace_as

from harness.engines.eviction.refusals import EvictionRefused
from harness.engines.eviction.snapkv.cut import Cut
from harness.specs.eviction import SnapKvRule


@dataclass(frozen=True, kw_only=True)
class ScoredSpec(FullAttentionSpec):
    """Of a prompt's whole blocks the first ``budget`` tokens' worth stay, once it is computed.

    ``evict_unit`` is the allocator's block in tokens; it outlives the copies with a smaller
    ``block_size`` that the engine makes where a kernel splits blocks.
    """

    budget: int
    observe: int
    evict_unit: int

    @property
    def cut(self) -> Cut:
        """The count that follows from the rule and the block."""
        return Cut(round_up(self.budget, self.evict_unit), self.evict_unit)

    @property
    def prefix_cacheable(self) -> bool:
        """No: the first blocks of a request hold other tokens' keys than its first ones."""
        return False

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:
        """The one spec of a group, all of whose layers must be cut alike."""
        # Past the full-attention spec's own, which would make one that is not cut.
        return super(FullAttentionSpec, cls).merge(specs)


def scored_spec(spec: AttentionSpec, rule: SnapKvRule) -> ScoredSpec:
    """The spec of a full-attention layer under the rule.

    Raises:
        EvictionRefused: any other kind of layer.
    """
    if type(spec) is not FullAttentionSpec or spec.non_causal:
        raise EvictionRefused(f"SnapKV was not tested with layers of kind {type(spec).__name__}")
    if spec.sliding_window is not None or spec.attention_chunk_size is not None:
        raise EvictionRefused("SnapKV was not tested with layers that have a window of their own")
    return replace_as(
        spec,
        ScoredSpec,
        budget=rule.budget,
        observe=rule.observe,
        evict_unit=spec.block_size,
    )
