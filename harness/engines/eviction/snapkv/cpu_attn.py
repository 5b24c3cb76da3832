"""CPU_ATTN with eviction by score: the stock kernel, and a cut after a prompt's attention.

Inside vLLM processes only. Keys and values of a prompt are at hand as they were computed, so the
choice reads no cache, and a quantized cache is quantized once. The chosen ones are written by
the backend's own update into the places of the prompt's first tokens, each KV head its own choice.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
)
from vllm.v1.kv_cache_interface import AttentionSpec

from harness.engines.eviction.snapkv.builder import EndingPrompt, ScoredMetadata, ScoringCPUBuilder
from harness.engines.eviction.snapkv.scoring import chosen_positions
from harness.engines.eviction.snapkv.spec import scored_spec
from harness.engines.eviction.spec import active_snapkv


class ScoringCPUImpl(CPUAttentionBackendImpl):
    """The stock attention; then prompts that end in this step are cut in this layer."""

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As the stock implementation; the cut shows only in later steps."""
        output = super().forward(
            layer,
            query,
            key,
            value,
            kv_cache,
            attn_metadata,
            output,
            output_scale,
            output_block_scale,
        )
        if isinstance(attn_metadata, ScoredMetadata):
            for prompt in attn_metadata.ending:
                queries = query[prompt.last - attn_metadata.observe : prompt.last]
                self._cut(layer, prompt, queries, key, value, kv_cache)
        return output

    def _cut(
        self,
        layer: Any,
        prompt: EndingPrompt,
        queries: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
    ) -> None:
        keys, values = key[prompt.first : prompt.last], value[prompt.first : prompt.last]
        positions = chosen_positions(queries, keys, self.scale, len(prompt.slots), prompt.whole)
        heads = torch.arange(keys.shape[1])
        own = positions.T  # (kept, KV heads)
        self.do_kv_cache_update(layer, keys[own, heads], values[own, heads], kv_cache, prompt.slots)


class ScoringCPUBackend(CPUAttentionBackend):
    """Registered over the stock backend under its own name, which layers look up."""

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        """The stock spec under the rule in force."""
        return scored_spec(super().customize_spec(spec), active_snapkv())

    @staticmethod
    def get_builder_cls() -> type[ScoringCPUBuilder]:
        """The builder that shortens batches."""
        return ScoringCPUBuilder

    @staticmethod
    def get_impl_cls() -> type[ScoringCPUImpl]:
        """The implementation that cuts prompts."""
        return ScoringCPUImpl
