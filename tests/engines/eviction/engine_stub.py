"""As much of the engine as builders and managers read, for checks that need no model.

Used inside processes with vLLM (``parts.py``, ``snapkv_parts.py``); the block pool and the manager
are the engine's own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.single_type_kv_cache_manager import get_manager_for_kv_cache_spec


def manager(spec: Any, pool: BlockPool, *, in_flight: int, longest: int) -> Any:
    """The engine's manager of such a spec, for steps of ``in_flight`` tokens."""
    return get_manager_for_kv_cache_spec(
        spec,
        max_in_flight_tokens=in_flight,
        max_model_len=longest,
        block_pool=pool,
        enable_caching=False,
        kv_cache_group_id=0,
        scheduler_block_size=spec.block_size,
    )


def config(dtype: Any, *, heads: int, kv_heads: int, head_size: int, in_flight: int) -> Any:
    """A configuration of one plain decoder on one device; the real one needs a model."""
    no = SimpleNamespace
    return no(
        kv_transfer_config=None,
        speculative_config=None,
        parallel_config=no(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            enable_dbo=False,
            ubatch_size=0,
            cp_kv_cache_interleave_size=1,
        ),
        cache_config=no(kv_sharing_fast_prefill=False, cache_dtype="auto"),
        model_config=no(
            use_mla=False,
            is_hybrid=False,
            is_encoder_decoder=False,
            is_mm_prefix_lm=False,
            is_multimodal_model=False,
            rswa_window=None,
            dtype=dtype,
            hf_config=no(model_type="llama"),
            get_num_attention_heads=lambda _parallel: heads,
            get_num_kv_heads=lambda _parallel: kv_heads,
            get_head_size=lambda: head_size,
        ),
        scheduler_config=no(
            max_num_seqs=8,
            max_num_batched_tokens=in_flight,
            enable_chunked_prefill=False,
            long_prefill_token_threshold=0,
        ),
        compilation_config=no(
            static_forward_context={},
            max_cudagraph_capture_size=0,
            cudagraph_capture_sizes=[],
            cudagraph_mode=no(has_full_cudagraphs=lambda: False),
        ),
        attention_config=no(flash_attn_max_num_splits_for_cuda_graph=32),
        kernel_config=no(enable_jit_warmup=False),
    )
