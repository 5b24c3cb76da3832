"""Metadata builders that shorten a batch before the stock builder sees it; inside vLLM only.

The buffers are made once: full CUDA graphs replay the addresses that they were captured with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import AttentionSpec

from harness.engines.eviction.compaction import Geometry, compact
from harness.engines.eviction.refusals import EvictionRefused, check_config
from harness.engines.eviction.spec import SinkWindowSpec, active_rule, evicting_spec

if TYPE_CHECKING:
    from vllm.v1.attention.backend import AttentionMetadataBuilder

    class _Stock(AttentionMetadataBuilder[Any]):
        """A class of its own, so that it can be a base where no engine is installed either."""

else:
    _Stock = object


class CompactingBuilder(_Stock):
    """Goes before a stock builder among the bases of a class; layers with a window pass through."""

    # The engine would otherwise put an unshortened table into finished metadata.
    supports_update_block_table = False
    requires_block_table_width = True

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
        *,
        block_table_width: int,
    ) -> None:
        """Refuse what was not tested, then set up buffers.

        Raises:
            EvictionRefused: the configuration, or a full-attention layer that the rule missed.
        """
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # Stock builders set it per instance; drafts would bypass the compaction.
        self.supports_draft_decode_metadata_update = False
        rule = active_rule()
        layers = get_layers_from_vllm_config(vllm_config, Attention)
        check_config(vllm_config, layers.values(), rule.window)
        self.geometry: Geometry | None = None
        if isinstance(kv_cache_spec, SinkWindowSpec):
            self.geometry = geometry_of(kv_cache_spec)
            self._make_buffers(self.geometry, vllm_config, device, block_table_width)
        elif evicting_spec(kv_cache_spec, rule) is not kv_cache_spec:
            raise EvictionRefused(f"the rule is not in force in the layers {layer_names[:3]}")

    def _make_buffers(
        self, geometry: Geometry, config: VllmConfig, device: torch.device, width: int
    ) -> None:
        scheduler = config.scheduler_config
        graphs = config.compilation_config.max_cudagraph_capture_size or 0
        rows = max(scheduler.max_num_seqs, graphs)
        shape = (rows, min(width, geometry.most_columns(scheduler.max_num_batched_tokens)))
        self._table = torch.zeros(shape, dtype=torch.int32, device=device)
        self._lens = torch.zeros(rows, dtype=torch.int32, device=device)
        self._columns = torch.arange(shape[1], dtype=torch.int64, device=device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:
        """Shorten the batch, then build as the stock builder does."""
        if self.geometry is not None:
            common_attn_metadata = self._compacted(common_attn_metadata, self.geometry)
        return super().build(  # type: ignore[safe-super]
            common_prefix_len, common_attn_metadata, fast_build
        )

    def _compacted(
        self, common: CommonAttentionMetadata, geometry: Geometry
    ) -> CommonAttentionMetadata:
        rows = common.seq_lens.shape[0]
        table, lens = self._table[:rows], self._lens[:rows]
        compact(
            common.block_table_tensor,
            common.seq_lens,
            common.query_start_loc,
            geometry,
            self._columns,
            table,
            lens,
        )
        return common.replace(
            block_table_tensor=table,
            seq_lens=lens,
            max_seq_len=min(common.max_seq_len, geometry.most_tokens(common.max_query_len)),
            _num_computed_tokens_cache=None,
        )


def geometry_of(spec: SinkWindowSpec) -> Geometry:
    """What the builder needs of the spec; its ``block_size`` is the kernel's block here."""
    return Geometry(
        sink_tokens=spec.sink_blocks * spec.evict_unit,
        window=spec.sliding_window,
        unit=spec.evict_unit,
        block=spec.block_size,
    )
