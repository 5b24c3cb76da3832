"""The scheduler's side: frees a prompt's blocks once it is computed; inside vLLM processes only.

The engine asks before each step, and tells how many tokens are processed for good. Once that
covers a request's first step, the worker has moved what stays to the request's first blocks and no
step in flight reads the rest. Blocks that go leave null blocks in the request's list, so later
blocks keep their places.
"""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

from harness.engines.eviction.evidence import snapkv_line
from harness.engines.eviction.refusals import check_block_size
from harness.engines.eviction.snapkv.spec import ScoredSpec
from harness.specs.eviction import SnapKvRule

# Under the engine's own name, or its log would not carry the line.
logger = init_logger("vllm.kvbench.eviction")


class ScoredManager(FullAttentionManager):
    """Frees the blocks that a prompt no longer needs."""

    def __init__(self, kv_cache_spec: ScoredSpec, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, **kwargs)
        check_block_size(kv_cache_spec.evict_unit, self.block_size)
        self.cut = kv_cache_spec.cut
        self.first_steps: dict[str, int] = {}
        rule = SnapKvRule(kv_cache_spec.budget, kv_cache_spec.observe)
        logger.warning_once(snapkv_line(rule, self.cut.kept // self.block_size, self.block_size))

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> list[KVCacheBlock]:
        """As the stock manager, noting how many tokens a request's first step computes."""
        self.first_steps.setdefault(request_id, num_tokens)
        return super().allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)

    def remove_skipped_blocks(
        self,
        request_id: str,
        processed_computed_tokens: int,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Free what goes of a prompt, as soon as its step is processed."""
        del num_prompt_tokens
        first_step = self.first_steps.get(request_id)
        if first_step is not None and processed_computed_tokens >= first_step:
            gone = self.cut.freed_blocks(first_step)
            self._remove_blocks_in_range(request_id, gone.start, gone.stop)

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """As the stock manager; a request that comes back has a first step anew."""
        self.first_steps.pop(request_id, None)
        return super().pop_blocks_for_free(request_id)

    def cache_blocks(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing of a cut request may be found again as a prefix."""
