"""The metadata builder of CPU_ATTN under the rule by score; inside vLLM processes only.

It names the prompts that end in this step, so that each layer cuts them after its attention, and
shows the kernel only the kept blocks of requests whose prompt was cut in an earlier step. Rows are
read on the host: this builder is for the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata, CPUAttentionMetadataBuilder
from vllm.v1.kv_cache_interface import AttentionSpec

from harness.engines.eviction.compaction import shown_columns
from harness.engines.eviction.refusals import EvictionRefused, check_snapkv
from harness.engines.eviction.snapkv.cut import FirstSteps
from harness.engines.eviction.snapkv.spec import ScoredSpec


@dataclass(frozen=True, slots=True)
class EndingPrompt:
    """A prompt computed in this step, from ``first`` to before ``last`` of the step's tokens.

    Of its ``whole`` tokens in whole blocks as many stay as ``slots`` (kept,) has places.
    """

    first: int
    last: int
    whole: int
    slots: torch.Tensor


@dataclass
class ScoredMetadata(CPUAttentionMetadata):
    """The stock metadata, and what each layer cuts after its attention."""

    ending: tuple[EndingPrompt, ...] = ()
    observe: int = 0


class ScoringCPUBuilder(CPUAttentionMetadataBuilder):
    """The stock builder on shortened batches."""

    # The engine would otherwise put an unshortened table into finished metadata.
    supports_update_block_table = False

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        """Refuse what was not tested.

        Raises:
            EvictionRefused: the configuration, or a layer that the rule missed.
        """
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        check_snapkv(vllm_config, get_layers_from_vllm_config(vllm_config, Attention).values())
        if not isinstance(kv_cache_spec, ScoredSpec):
            raise EvictionRefused(f"the rule is not in force in the layers {layer_names[:3]}")
        self.spec = kv_cache_spec
        self.first_steps = FirstSteps()

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> ScoredMetadata:
        """Shorten the batch, build as the stock builder does, and name the prompts that end."""
        common = common_attn_metadata
        ending, dropped = self._read(common)
        shown = self._shown(common, dropped) if any(dropped) else common
        stock = super().build(common_prefix_len, shown, fast_build)
        own = {field.name: getattr(stock, field.name) for field in fields(stock)}
        return ScoredMetadata(**own, ending=ending, observe=self.spec.observe)

    def _read(self, common: CommonAttentionMetadata) -> tuple[tuple[EndingPrompt, ...], list[int]]:
        """Prompts that are cut in this step, and tokens that went from each row before it."""
        cut, ending, dropped = self.spec.cut, [], []
        starts = common.query_start_loc_cpu.tolist()
        first_blocks = common.block_table_tensor[:, 0].tolist()
        for row, length in enumerate(common.seq_lens.tolist()):
            first, last = starts[row], starts[row + 1]
            # Block 0 is nobody's: a row of padding, or of a batch that only warms up.
            if length == 0 or first_blocks[row] == 0:
                dropped.append(0)
                continue
            new = last - first
            dropped.append(cut.dropped(self.first_steps.see(first_blocks[row], length - new, new)))
            if length == new and cut.dropped(new):
                slots = self._slots(common.block_table_tensor[row])
                ending.append(EndingPrompt(first, last, cut.whole(new), slots))
        return tuple(ending), dropped

    def _slots(self, blocks: torch.Tensor) -> torch.Tensor:
        """Places of the first ``kept`` tokens of a request with these kernel blocks."""
        place = torch.arange(self.spec.cut.kept)
        block = self.spec.block_size
        return blocks[place // block].long() * block + place % block

    def _shown(
        self, common: CommonAttentionMetadata, dropped: list[int]
    ) -> CommonAttentionMetadata:
        block, table = self.spec.block_size, common.block_table_tensor
        tokens = torch.tensor(dropped, dtype=torch.int32)
        columns = torch.arange(table.shape[1])
        source = shown_columns(tokens // block, self.spec.cut.kept // block, columns, len(columns))
        lens = common.seq_lens - tokens
        return common.replace(
            block_table_tensor=table.gather(1, source),
            seq_lens=lens,
            max_seq_len=int(lens.max()),
            _num_computed_tokens_cache=None,
        )
