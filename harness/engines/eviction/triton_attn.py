"""TRITON_ATTN with eviction: stock kernel and name, other spec and builder; inside vLLM only."""

from __future__ import annotations

from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import AttentionSpec

from harness.engines.eviction.builder import CompactingBuilder
from harness.engines.eviction.spec import active_rule, evicting_spec


class EvictingTritonBuilder(CompactingBuilder, TritonAttentionMetadataBuilder):
    """The stock builder on shortened batches."""


class EvictingTritonBackend(TritonAttentionBackend):
    """Registered over the stock backend under its own name, which layers look up."""

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        """The stock spec under the rule in force."""
        return evicting_spec(super().customize_spec(spec), active_rule())

    @staticmethod
    def get_builder_cls() -> type[EvictingTritonBuilder]:
        """The builder that shortens batches."""
        return EvictingTritonBuilder
