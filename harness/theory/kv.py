"""What one layer's cache occupies on one GPU: bytes per token, per block, blocks per request.

Method: each layer of the model becomes a ``CacheSpec``, as the engine makes it: KV heads are
split by tensor parallelism and replicated beyond it, latent caches are replicated, recurrent
states are split; the KV dtype sets the bytes; the block size is the engine's, raised for
recurrent hybrids until the attention page covers the state page.

Not covered: layouts that put all layers of a block side by side, KV transfer, and the kernels'
own wishes for another block size (pass ``block_size`` as the engine printed it).
Source: vLLM 0.32.0, ``v1/kv_cache_interface.py``, ``platforms/interface.py`` and
``platforms/cpu.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import lcm
from typing import Literal

from harness.errors import InputError, UnsupportedModel
from harness.specs.eviction import EvictionRule
from harness.specs.kv_dtype import KvDtype, element_bytes, kv_dtype
from harness.specs.layers import AttentionLayer, ConvState, Layer, MatrixState, RecurrentLayer
from harness.specs.model import ModelSpec
from harness.theory.eviction import most_blocks_held
from harness.theory.settings import MOST_PROCESSES, EngineSettings
from harness.units import Bytes, Tokens

CacheKind = Literal["full", "sliding", "chunked", "mla", "recurrent", "evicting"]

#: The smallest block that the paged kernels of each device take; larger ones are multiples.
_KERNEL_BLOCK = {"cuda": 16, "cpu": 32}
#: The reference latent kernel of the CPU is compiled for this block only.
_CPU_LATENT_BLOCK = 16
#: A latent cache beside recurrent states keeps blocks that its decode kernels can split evenly.
_HYBRID_LATENT_BLOCK = 128
#: Dense models keep so many layers at each end out of the packed formats.
_PACKED_BOUNDARY_LAYERS = 2


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """One layer's cache on one GPU; equal specs share a block table.

    ``token_bytes`` is what a token stores (0 for a recurrent layer), ``state_bytes`` what a
    sequence stores whatever its length, and ``states`` how many of those it may hold.
    ``page_padded`` is the page that the allocator hands out where it is larger than the content.
    ``shape`` tells apart caches that are equal in bytes.
    ``retained`` are tokens below the window that several draft modules may prefill again.
    ``eviction`` is the rule of an ``evicting`` layer, which would see everything without it.
    """

    kind: CacheKind
    block_size: Tokens
    token_bytes: Bytes
    shape: tuple[int | str, ...]
    window: Tokens | None = None
    state_bytes: Bytes = 0
    states: int = 0
    page_padded: Bytes | None = None
    retained: Tokens = 0
    eviction: EvictionRule | None = None

    @property
    def content_bytes(self) -> Bytes:
        """Bytes of one page that hold data."""
        return self.state_bytes or self.block_size * self.token_bytes

    @property
    def page_bytes(self) -> Bytes:
        """Bytes of one block of this layer, padding included."""
        return self.page_padded or self.content_bytes


@dataclass(frozen=True, slots=True)
class LayerCache:
    """A layer's place in the model, and its cache."""

    index: int
    spec: CacheSpec


def ceil_div(count: int, size: int) -> int:
    """Whole parts of ``size`` that cover ``count``."""
    return -(-count // size)


def kv_heads_per_gpu(kv_heads: int, tensor_parallel_size: int) -> int:
    """KV heads that one GPU keeps: an equal share, or one replica.

    Raises:
        InputError: the heads can be neither split nor replicated evenly.
    """
    if kv_heads % tensor_parallel_size and tensor_parallel_size % kv_heads:
        raise InputError(
            f"{kv_heads} KV heads can't be spread over tensor_parallel_size {tensor_parallel_size}",
            where="tensor_parallel_size",
            next_move="choose a divisor or a multiple of the KV heads",
        )
    return max(1, kv_heads // tensor_parallel_size)


def model_dtype(model: ModelSpec, settings: EngineSettings) -> str:
    """The dtype that weights and activations have under these settings."""
    return model.dtype if settings.dtype == "auto" else settings.dtype


def resolved_kv_dtype(model: ModelSpec, settings: EngineSettings) -> KvDtype:
    """The format that ``kv_cache_dtype`` stands for: flag, then checkpoint, then model dtype."""
    name = settings.kv_cache_dtype
    if name == "auto":
        name = model.kv_cache_dtype
    return kv_dtype(model_dtype(model, settings) if name == "auto" else name)


def bytes_per_token(caches: Iterable[LayerCache]) -> Bytes:
    """Bytes that one token stores in all layers of one GPU, windows not considered."""
    return sum(cache.spec.token_bytes for cache in caches)


def layer_caches(model: ModelSpec, settings: EngineSettings) -> tuple[LayerCache, ...]:
    """The caches of all layers, as one GPU of each pipeline stage keeps them.

    The model's own draft layers follow where speculation uses them.

    Raises:
        InputError: settings that the model can't be split by.
        UnsupportedModel: a combination whose layout is not modelled.
    """
    _check(model, settings)
    layers = model.layers + (model.draft_layers if _drafting(settings) else ())
    plan = _block_plan(model, settings)
    caches = tuple(
        LayerCache(layer.index, _cache(layer, model, settings, plan)) for layer in layers
    )
    if settings.disable_hybrid_kv_cache_manager:
        return _promoted(caches)
    return caches


def _check(model: ModelSpec, settings: EngineSettings) -> None:
    tp, dcp = settings.tensor_parallel_size, settings.decode_context_parallel_size
    if model.heads and model.heads % tp:
        raise InputError(
            f"{model.heads} attention heads can't be split over tensor_parallel_size {tp}",
            where="tensor_parallel_size",
            legal=map(str, _splits(model)),
        )
    if settings.pipeline_parallel_size > model.layer_count:
        raise InputError(
            f"pipeline_parallel_size {settings.pipeline_parallel_size} exceeds "
            f"{model.layer_count} layers",
            where="pipeline_parallel_size",
            legal=[f"1 to {model.layer_count}"],
        )
    if tp % dcp:
        raise InputError(
            f"decode_context_parallel_size {dcp} must divide tensor_parallel_size {tp}",
            where="decode_context_parallel_size",
            legal=[str(size) for size in range(1, tp + 1) if tp % size == 0],
        )
    if dcp > 1:
        _check_context_parallel(model, tp, dcp)


def _splits(model: ModelSpec) -> list[int]:
    """Numbers of GPUs over which query heads are split and KV heads split or replicated evenly."""
    kept = {layer.kv_heads for layer in model.attention_layers if layer.kind != "mla"}
    return [
        size
        for size in range(1, min(model.heads, MOST_PROCESSES) + 1)
        if model.heads % size == 0 and all(n % size == 0 or size % n == 0 for n in kept)
    ]


def _check_context_parallel(model: ModelSpec, tp: int, dcp: int) -> None:
    windowed = [layer for layer in model.attention_layers if layer.window]
    if windowed:
        raise InputError(
            "the engine refuses decode context parallel for layers with a window",
            where="decode_context_parallel_size",
            legal=["1"],
        )
    for layer in model.attention_layers:
        if layer.kind != "mla" and tp // layer.kv_heads < dcp:
            raise InputError(
                f"decode_context_parallel_size {dcp} exceeds the replicas of the "
                f"{layer.kv_heads} KV heads under tensor_parallel_size {tp}",
                where="decode_context_parallel_size",
                legal=[f"1 to {max(tp // layer.kv_heads, 1)}"],
            )


# --- one layer -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _BlockPlan:
    """Block size of attention layers, and the page that recurrent states are padded to."""

    block_size: Tokens
    state_page: Bytes | None = None


def _cache(layer: Layer, model: ModelSpec, settings: EngineSettings, plan: _BlockPlan) -> CacheSpec:
    if isinstance(layer, RecurrentLayer):
        return _state_cache(layer, model, settings, plan)
    dtype = _layer_dtype(layer, model, settings)
    heads = (
        1
        if layer.kind == "mla"
        else kv_heads_per_gpu(layer.kv_heads, settings.tensor_parallel_size)
    )
    rule = settings.eviction if layer.kind == "full" else None
    return CacheSpec(
        kind="evicting" if rule else layer.kind,
        block_size=_layer_block(layer, settings, plan),
        token_bytes=_token_bytes(layer, heads, dtype),
        shape=(heads, layer.head_dim, layer.head_dim_v, dtype.name),
        window=rule.window if rule else layer.window,
        eviction=rule,
        retained=_retained(model, settings) if layer.kind == "sliding" else 0,
    )


def _retained(model: ModelSpec, settings: EngineSettings) -> Tokens:
    """A chain of draft modules reads one token further ahead per module."""
    if not _drafting(settings) or min(len(model.draft_layers), settings.num_speculative_tokens) < 2:
        return 0
    return settings.num_speculative_tokens - 1


def _drafting(settings: EngineSettings) -> bool:
    return settings.num_speculative_tokens > 0 and settings.speculative_method == "mtp"


def _token_bytes(layer: AttentionLayer, heads: int, dtype: KvDtype) -> Bytes:
    if layer.kind == "mla":
        return dtype.latent_bytes(layer.head_dim)
    return dtype.token_bytes(heads, layer.head_dim, layer.head_dim_v)


def _layer_dtype(layer: AttentionLayer, model: ModelSpec, settings: EngineSettings) -> KvDtype:
    dtype = resolved_kv_dtype(model, settings)
    if layer.ignores_kv_dtype:
        return kv_dtype(model_dtype(model, settings))
    if not _skipped(layer, model, settings, dtype):
        return dtype
    if any(other.window for other in model.attention_layers):
        raise UnsupportedModel(
            "layers kept out of the KV dtype beside layers with a window are not modelled",
            where=model.name,
            next_move="choose another kv_cache_dtype",
        )
    return kv_dtype(model_dtype(model, settings))


def _skipped(
    layer: AttentionLayer, model: ModelSpec, settings: EngineSettings, dtype: KvDtype
) -> bool:
    """Whether a layer keeps the model's dtype: asked for, or near an end under a packed format."""
    named = settings.kv_cache_dtype_skip_layers
    if str(layer.index) in named or (layer.kind == "sliding" and "sliding_window" in named):
        return True
    if dtype.layout != "turboquant" or model.is_hybrid:
        return False
    edge = min(_PACKED_BOUNDARY_LAYERS, model.layer_count // 2)
    return layer.index < edge or layer.index >= model.layer_count - edge


def _layer_block(layer: AttentionLayer, settings: EngineSettings, plan: _BlockPlan) -> Tokens:
    """Sliding layers take the largest kernel block within the block of the others."""
    if layer.kind != "sliding":
        return plan.block_size
    kernel = _KERNEL_BLOCK[settings.device]
    return max(kernel, plan.block_size // kernel * kernel)


# --- recurrent states ----------------------------------------------------------------------------


def _state_cache(
    layer: RecurrentLayer, model: ModelSpec, settings: EngineSettings, plan: _BlockPlan
) -> CacheSpec:
    return CacheSpec(
        kind="recurrent",
        block_size=plan.block_size,
        token_bytes=0,
        shape=(),
        state_bytes=_state_bytes(layer, model, settings),
        states=_states(layer, model, settings),
        page_padded=plan.state_page,
    )


def _states(layer: RecurrentLayer, model: ModelSpec, settings: EngineSettings) -> int:
    """States that a request may hold in one layer.

    One, and one per speculative token. While prefix caching aligns states to blocks, the one
    before stays, and so do those saved within a prefill. Prefix caching is on unless it was turned
    off, or the model class has no attention at all.
    """
    caching = settings.enable_prefix_caching
    aligned = not model.attention_free if caching is None else caching
    return 1 + settings.num_speculative_tokens + (1 + layer.checkpoints if aligned else 0)


def _state_bytes(layer: RecurrentLayer, model: ModelSpec, settings: EngineSettings) -> Bytes:
    """Bytes of one sequence's state of one layer on one GPU."""
    return sum(_one_state(state, model, settings) for state in layer.states)


def _one_state(state: ConvState | MatrixState, model: ModelSpec, settings: EngineSettings) -> Bytes:
    tp = settings.tensor_parallel_size
    conv_dtype = settings.mamba_cache_dtype
    if conv_dtype == "auto":
        conv_dtype = model_dtype(model, settings)
    if isinstance(state, MatrixState):
        dtype = _matrix_dtype(state, settings) or conv_dtype
        return _share(state.heads, tp) * state.elements_per_head * element_bytes(dtype)
    width = state.width + _groups(state.groups, tp) * state.grouped_width
    drafts = settings.num_speculative_tokens if state.grows_with_speculation else 0
    return _share(width, tp) * (state.kernel - 1 + drafts) * element_bytes(conv_dtype)


def _matrix_dtype(state: MatrixState, settings: EngineSettings) -> str | None:
    """What the flag says, then the model; the CPU's bf16 kernels insist on float32."""
    if settings.device == "cpu" and "avx512_bf16" in settings.cpu_features:
        return "float32"
    return (
        state.dtype if settings.mamba_ssm_cache_dtype == "auto" else settings.mamba_ssm_cache_dtype
    )


def _groups(groups: int, tp: int) -> int:
    """Groups that do not divide evenly are replicated until every GPU has one."""
    return groups if groups % tp == 0 else tp


def _share(count: int, tp: int) -> int:
    if count % tp:
        raise InputError(
            f"a recurrent state of width {count} can't be split over {tp} GPUs",
            where="tensor_parallel_size",
            next_move="choose a divisor of that width",
        )
    return count // tp


# --- block size ----------------------------------------------------------------------------------


def _block_plan(model: ModelSpec, settings: EngineSettings) -> _BlockPlan:
    block = _base_block(model, settings)
    if model.is_hybrid and model.attention_layers:
        return _hybrid_plan(model, settings, block)
    if settings.kv_cache_dtype_skip_layers or _keeps_edges(model, settings):
        return _BlockPlan(_covering_block(model, settings, block))
    return _BlockPlan(block)


def _base_block(model: ModelSpec, settings: EngineSettings) -> Tokens:
    if settings.device == "cpu" and model.uses_mla and "amx" not in settings.cpu_features:
        return _CPU_LATENT_BLOCK
    return settings.default_block_size


def _keeps_edges(model: ModelSpec, settings: EngineSettings) -> bool:
    return resolved_kv_dtype(model, settings).layout == "turboquant" and not model.is_hybrid


def _token_page(model: ModelSpec, settings: EngineSettings, dtype: KvDtype) -> Bytes:
    """Bytes of one token in one attention layer, by the model's general head shape."""
    layer = model.attention_layers[0]
    heads = (
        1
        if layer.kind == "mla"
        else kv_heads_per_gpu(layer.kv_heads, settings.tensor_parallel_size)
    )
    return _token_bytes(layer, heads, dtype)


def _hybrid_plan(model: ModelSpec, settings: EngineSettings, block: Tokens) -> _BlockPlan:
    """Raise the block until an attention page covers a state page; pad the state to that page."""
    kernel = _KERNEL_BLOCK[settings.device]
    if model.uses_mla and settings.device == "cpu":
        kernel = _CPU_LATENT_BLOCK
    dtype = resolved_kv_dtype(model, settings)
    token = _token_page(model, settings, dtype)
    if dtype.layout == "turboquant" and settings.kv_cache_dtype_skip_layers:
        token = lcm(token, _token_page(model, settings, kv_dtype(model_dtype(model, settings))))
    state = max(_state_bytes(layer, model, settings) for layer in model.recurrent_layers)
    step = max(kernel, block, _HYBRID_LATENT_BLOCK if model.uses_mla else 0)
    needed = step * ceil_div(state, step * token)
    needed = kernel * ceil_div(needed, kernel)
    raised = max(block, needed)
    return _BlockPlan(raised, raised * token)


def _covering_block(model: ModelSpec, settings: EngineSettings, block: Tokens) -> Tokens:
    """Where some layers keep the model's dtype: a block whose packed page covers theirs (CUDA)."""
    if settings.device != "cuda":
        return block
    packed = _token_page(model, settings, resolved_kv_dtype(model, settings))
    native = _token_page(model, settings, kv_dtype(model_dtype(model, settings)))
    if native <= packed:
        return block
    kernel = _KERNEL_BLOCK[settings.device]
    step = max(kernel, block)
    return max(block, step * ceil_div(native * kernel, step * packed))


# --- without the hybrid manager ------------------------------------------------------------------


def _promoted(caches: tuple[LayerCache, ...]) -> tuple[LayerCache, ...]:
    """Beside full attention, layers with a window are allocated as if they had none."""
    kinds = {cache.spec.kind for cache in caches}
    if not kinds & {"full", "mla"} or not kinds & {"sliding", "chunked"}:
        return caches
    full = next(cache.spec for cache in caches if cache.spec.kind in ("full", "mla"))

    def promote(spec: CacheSpec) -> CacheSpec:
        if spec.kind not in ("sliding", "chunked"):
            return spec
        return replace(spec, kind="full", window=None, block_size=full.block_size)

    return tuple(replace(cache, spec=promote(cache.spec)) for cache in caches)


# --- what one request needs ----------------------------------------------------------------------


def blocks_of_request(spec: CacheSpec, context_tokens: Tokens, settings: EngineSettings) -> int:
    """Blocks of this cache that a request of ``context_tokens`` may hold at its worst moment.

    A window keeps its last ``window - 1`` tokens beside those in flight, and one block more since
    it need not begin at a block's edge; a chunk keeps its tokens beside those in flight.
    """
    if spec.kind == "recurrent":
        return spec.states
    if spec.kind == "sliding":
        seen = _window(spec) - 1 + spec.retained + settings.tokens_in_flight
        return ceil_div(min(seen, context_tokens), spec.block_size) + 1
    if spec.kind == "chunked":
        seen = _window(spec) + settings.tokens_in_flight
        return ceil_div(min(seen, context_tokens), spec.block_size)
    if spec.eviction is not None:
        return most_blocks_held(
            spec.eviction, spec.block_size, context_tokens, settings.tokens_in_flight
        )
    own = ceil_div(context_tokens, settings.decode_context_parallel_size)
    return ceil_div(own, spec.block_size)


def _window(spec: CacheSpec) -> Tokens:
    if spec.window is None:
        raise UnsupportedModel("a layer with a window states no width")
    return spec.window
