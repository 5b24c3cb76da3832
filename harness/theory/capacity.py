"""From a byte budget to blocks, tokens and requests that fit, as the engine plans them.

Method: the groups of ``groups`` share one pool; a block is as wide as the widest group of the
narrowest pipeline stage; a request takes from each group the blocks that ``kv.blocks_of_request``
says; concurrency is blocks over blocks per request. The token figure that the engine prints is
``int(max_concurrency * max_model_len)``: for models with windows or states it moves with
``max_model_len``, so a pair (fixed bytes, bytes per further token) is given beside it.

Not covered: the null block, which the engine keeps back when it serves and counts when it prints.
Source: vLLM 0.32.0, ``v1/core/kv_cache_utils.py`` (``get_kv_cache_capacity``).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import InputError
from harness.specs.model import ModelSpec
from harness.theory import snapkv
from harness.theory.groups import CacheGroup, bytes_per_block, cache_groups, on_stage
from harness.theory.kv import (
    CacheKind,
    blocks_of_request,
    bytes_per_token,
    layer_caches,
    resolved_kv_dtype,
)
from harness.theory.settings import EngineSettings, settings_from_flags
from harness.units import Bytes, Tokens

__all__ = [
    "EngineSettings",
    "KvCapacity",
    "LayerGroup",
    "kv_memory_for_tokens",
    "predict_capacity",
    "settings_from_flags",
]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share one block table; figures are per GPU.

    ``page_bytes`` is one block of one layer (the widest, if they differ), ``blocks_per_request``
    the need at ``max_model_len``.
    """

    kind: CacheKind
    layers: int
    window: Tokens | None
    block_size: Tokens
    page_bytes: Bytes
    blocks_per_request: int


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """What a KV pool holds. Bytes and blocks are per GPU; unknown is None.

    ``kv_bytes_per_token`` charges every attention layer in full; ``bytes_per_further_token`` only
    those that keep a token of a long context. ``max_concurrency`` and ``kv_cache_tokens`` are the
    figures that the engine prints: worst case, all requests at ``max_model_len``.
    """

    kv_cache_dtype: str
    kv_bytes_per_token: Bytes
    block_size: Tokens
    bytes_per_block: Bytes
    layer_groups: tuple[LayerGroup, ...]
    max_model_len: Tokens
    kv_cache_memory_bytes: Bytes | None
    num_blocks: int | None
    kv_cache_tokens: Tokens | None
    max_concurrency: float | None
    notes: tuple[str, ...]
    _groups: tuple[CacheGroup, ...]
    _settings: EngineSettings

    @property
    def tokens_in_flight(self) -> Tokens:
        """Tokens that may be scheduled but not yet settled, which windows and eviction keep."""
        return self._settings.tokens_in_flight

    def blocks_per_request(self, context_tokens: Tokens) -> int:
        """Blocks that a request of this length takes from the pool at its worst moment."""
        return _blocks(self._groups, context_tokens, self._settings)

    def kv_bytes_per_request(self, context_tokens: Tokens) -> Bytes:
        """Bytes of those blocks, on one GPU."""
        return self.blocks_per_request(context_tokens) * self.bytes_per_block

    def concurrency(self, context_tokens: Tokens) -> float | None:
        """Requests of this length that fit at once, fractional; None without a budget."""
        if self.num_blocks is None:
            return None
        return self.num_blocks / self.blocks_per_request(context_tokens)

    @property
    def bytes_per_further_token(self) -> float:
        """Pool bytes that one more token of a long context costs, on average over a block."""
        shards = self._settings.decode_context_parallel_size
        growing = (group.spec.block_size for group in self._groups if group.spec.kind in _GROWING)
        return sum(self.bytes_per_block / (size * shards) for size in growing)

    @property
    def fixed_bytes_per_request(self) -> Bytes:
        """Pool bytes that a long request takes whatever its length: windows and states."""
        fixed = [group for group in self._groups if group.spec.kind not in _GROWING]
        return _blocks(fixed, _LONG, self._settings) * self.bytes_per_block


_GROWING = ("full", "mla")
#: Longer than any window with its tokens in flight.
_LONG: Tokens = 1 << 40


def predict_capacity(
    model: ModelSpec,
    settings: EngineSettings,
    kv_cache_memory_bytes: Bytes | None,
    *,
    num_blocks: int | None = None,
) -> KvCapacity:
    """Predict what the engine will plan for a model, under settings and a byte budget per GPU.

    Args:
        model: from ``model_spec``.
        settings: the server's; None fields take the pinned engine's defaults.
        kv_cache_memory_bytes: what one GPU has for KV; None leaves the pool's figures unknown.
        num_blocks: take this pool instead of deriving it (``--num-gpu-blocks-override``).

    Raises:
        InputError: settings that the model can't be split by, or a negative budget.
        UnsupportedModel: a layout that is not modelled.
    """
    if kv_cache_memory_bytes is not None and kv_cache_memory_bytes < 0:
        raise InputError(f"a KV budget of {kv_cache_memory_bytes} bytes is negative")
    caches = layer_caches(model, settings)
    groups = cache_groups(caches)
    max_model_len = settings.max_model_len or model.max_model_len
    width = _widest_stage(groups, model, settings)
    if num_blocks is None and kv_cache_memory_bytes is not None:
        num_blocks = kv_cache_memory_bytes // width
    needed = _blocks(groups, max_model_len, settings)
    concurrency = None if num_blocks is None else num_blocks / needed
    return KvCapacity(
        kv_cache_dtype=resolved_kv_dtype(model, settings).name,
        kv_bytes_per_token=bytes_per_token(caches),
        block_size=_primary_block(groups),
        bytes_per_block=width,
        layer_groups=tuple(_described(group, max_model_len, settings) for group in groups),
        max_model_len=max_model_len,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        num_blocks=num_blocks,
        kv_cache_tokens=None if concurrency is None else int(concurrency * max_model_len),
        max_concurrency=concurrency,
        notes=model.notes + _notes(groups, model, settings),
        _groups=groups,
        _settings=settings,
    )


def kv_memory_for_tokens(model: ModelSpec, settings: EngineSettings, tokens: Tokens) -> Bytes:
    """Bytes for ``--kv-cache-memory-bytes`` so that the pool holds at least ``tokens``.

    Never less than one request of ``max_model_len`` beside the engine's null block, without which
    the server refuses to start.
    """
    plan = predict_capacity(model, settings, None)
    needed = plan.blocks_per_request(plan.max_model_len)
    blocks = -(-tokens * needed // plan.max_model_len)
    # Truncation of a float quotient may fall one token short.
    while int(blocks / needed * plan.max_model_len) < tokens:
        blocks += 1
    return max(blocks, needed + 1) * plan.bytes_per_block


def _blocks(
    groups: tuple[CacheGroup, ...] | list[CacheGroup], tokens: Tokens, settings: EngineSettings
) -> int:
    return sum(
        max(blocks_of_request(layer.spec, tokens, settings) for layer in group.layers)
        for group in groups
    )


def _widest_stage(
    groups: tuple[CacheGroup, ...], model: ModelSpec, settings: EngineSettings
) -> Bytes:
    """The pool has as many blocks as the stage with the widest block affords."""
    stages = settings.pipeline_parallel_size
    kept = (on_stage(groups, stage, model.layer_count, stages) for stage in range(stages))
    return max(bytes_per_block(stage) for stage in kept if stage)


def _primary_block(groups: tuple[CacheGroup, ...]) -> Tokens:
    """The block of the layers that see everything, else of the first group."""
    growing = [group.spec.block_size for group in groups if group.spec.kind in _GROWING]
    return min(growing) if growing else groups[0].spec.block_size


def _described(group: CacheGroup, max_model_len: Tokens, settings: EngineSettings) -> LayerGroup:
    return LayerGroup(
        kind=group.spec.kind,
        layers=len(group.layers),
        window=group.spec.window,
        block_size=group.spec.block_size,
        page_bytes=max(layer.spec.page_bytes for layer in group.layers),
        blocks_per_request=_blocks([group], max_model_len, settings),
    )


def _in_flight(settings: EngineSettings) -> str:
    ahead = "; one step fewer without async_scheduling" if settings.schedules_ahead else ""
    guessed = settings.device == "cuda" and settings.max_num_batched_tokens is None
    unsaid = "; the default step grows with the card: state it, or name the card" if guessed else ""
    return (
        f"windows are charged with {settings.tokens_in_flight:,} tokens in flight "
        f"({settings.batches_in_flight} × max_num_batched_tokens {settings.batch_tokens:,})"
        f"{ahead}{unsaid}"
    )


def _notes(
    groups: tuple[CacheGroup, ...], model: ModelSpec, settings: EngineSettings
) -> tuple[str, ...]:
    kinds = {group.spec.kind for group in groups}
    notes: list[str] = []
    if settings.eviction is not None:
        notes.append(
            f"token eviction ({settings.eviction}): full-attention layers keep sinks and window in "
            "whole blocks; the middle's blocks are freed between steps"
        )
    if settings.snapkv is not None:
        notes.append(snapkv.note(settings.snapkv, _primary_block(groups)))
    if kinds & {"sliding", "chunked", "evicting"}:
        notes.append(_in_flight(settings))
    if model.is_hybrid and model.attention_layers and settings.enable_prefix_caching is None:
        notes.append(
            "prefix caching is taken to be on (the engine's default): it costs a state more"
        )
    if model.is_hybrid and (block := _primary_block(groups)) > settings.default_block_size:
        notes.append(
            f"attention blocks are raised to {block:,} tokens so that a page covers a state: "
            "a shorter request takes a whole block all the same"
        )
    if settings.num_speculative_tokens and not model.draft_layers:
        notes.append("draft layers are not counted: none of the model's own are known")
    if model.uses_mla and settings.device == "cuda" and settings.block_size is None:
        notes.append(
            "block size 16 is assumed; FlashMLA uses 64: pass block_size as it was printed"
        )
    return tuple(notes)
