"""The scheduler's side: which blocks of a request are freed; loaded inside vLLM processes only.

Before each step the engine tells how many tokens are processed for good. Blocks that end before
the recent window go back to the pool and leave null blocks in the request's list, so later blocks
keep their places; the sinks' blocks are passed over. That count never runs ahead of what the
worker has computed, so nothing is freed that a step in flight still reads. The spec keeps these
blocks out of the prefix cache, so no request ever begins with a hit.
"""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager

from harness.engines.eviction.evidence import in_force_line
from harness.engines.eviction.refusals import check_block_size
from harness.engines.eviction.spec import SinkWindowSpec

# Under the engine's own name, or its log would not carry the line.
logger = init_logger("vllm.kvbench.eviction")


class SinkWindowManager(SlidingWindowManager):
    """Frees the blocks between the sinks and the window."""

    def __init__(self, kv_cache_spec: SinkWindowSpec, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, **kwargs)
        check_block_size(kv_cache_spec.evict_unit, self.block_size)
        self.sink_blocks = kv_cache_spec.sink_blocks
        logger.warning_once(
            in_force_line(
                kv_cache_spec.sink_tokens,
                self.sink_blocks,
                kv_cache_spec.sliding_window,
                self.block_size,
                self.max_admission_blocks_per_request,
            )
        )

    def remove_skipped_blocks(
        self,
        request_id: str,
        processed_computed_tokens: int,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Free the whole blocks that lie between the sinks and the window of the next token."""
        del num_prompt_tokens
        skipped = self.get_num_skipped_tokens(processed_computed_tokens) // self.block_size
        self._remove_blocks_in_range(request_id, self.sink_blocks, skipped)
