"""The figures that ``kvbench calc`` prints, as plain values ready for JSON.

One mapping per variant, with the keys of DESIGN section 4 and a few more. Unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.errors import InputError, KvbenchError, ModelConfigError, UnsupportedModel
from harness.specs.gpu import GpuSpec, memory_note
from harness.specs.kv_dtype import KV_DTYPES, kv_dtype_hint
from harness.specs.layers import AttentionLayer, Layer
from harness.specs.model import ModelSpec
from harness.theory.budget import MemoryBudget, plan_budget, requirement
from harness.theory.capacity import KvCapacity, predict_capacity
from harness.theory.kv import resolved_kv_dtype
from harness.theory.roofline import (
    Ceilings,
    ceilings_of,
    compute_bound_batch,
    decode_work,
    kv_exceeds_weights_at,
    prefill_work,
)
from harness.theory.settings import EngineSettings
from harness.theory.unserved import kv_dtype_unserved
from harness.units import Bytes, Tokens, format_count

_HEAD_VARIANTS = ("mha", "gqa", "mqa")
#: Grouped heads of a model that has none, as the chapter's example groups them (32 → 8).
_USUAL_GROUP = 4
#: The shape of the model that the chapter computes with: layers, query heads, head_dim.
_CHAPTER_SHAPE = (32, 32, 128)
_ERRATUM = (
    "erratum of the textbook chapter that kvbench tests (docs/chapter.md): it prints half of what "
    "its own formula gives for this shape (its 128 MB … 8 GB and 496/124/31/7 requests are the "
    "8-bit figures; in 16 bits it is 256 MiB … 16 GiB and 248/62/15/3)"
)


_ADD_MEMORY = (
    "how many requests fit is not said without a memory: add --gpu NAME (which also bounds speed), "
    "--memory-gib or --kv-memory-gib"
)


@dataclass(frozen=True, slots=True)
class Memory:
    """What was said about one GPU's memory; None where nothing was."""

    gpu: GpuSpec | None
    total_bytes: Bytes | None
    weights_bytes: Bytes | None
    overhead_bytes: Bytes | None
    kv_bytes: Bytes | None
    utilization: float


@dataclass(frozen=True, slots=True)
class Variant:
    """One thing to compute: a model under settings, and its name in a comparison."""

    name: str | None
    model: ModelSpec
    settings: EngineSettings


def variants_of(
    model: ModelSpec, settings: EngineSettings, compare: str | None
) -> tuple[Variant, ...]:
    """The variants that ``--compare`` names: head groupings or KV dtypes.

    Raises:
        InputError: a name that is neither.
        UnsupportedModel: head groupings of a model without K and V heads.
    """
    if compare is None:
        return (Variant(None, model, settings),)
    names = [name.strip().lower() for name in compare.split(",") if name.strip()]
    if not names:
        raise InputError("--compare names no variant", legal=(*_HEAD_VARIANTS, "auto", *KV_DTYPES))
    return tuple(_variant(name, model, settings) for name in names)


def _variant(name: str, model: ModelSpec, settings: EngineSettings) -> Variant:
    if name in _HEAD_VARIANTS:
        return Variant(name, _regrouped(model, name), settings)
    dtype = {"fp16": "float16", "bf16": "bfloat16"}.get(name, name)
    if dtype in KV_DTYPES or dtype == "auto":
        return Variant(name, model, replace(settings, kv_cache_dtype=dtype))
    legal = (*_HEAD_VARIANTS, "auto", *KV_DTYPES)
    raise InputError(f"unknown variant {name!r}", legal=legal, next_move=kv_dtype_hint(name, legal))


def _regrouped(model: ModelSpec, grouping: str) -> ModelSpec:
    if model.uses_mla or not model.attention_layers:
        raise UnsupportedModel(
            f"{model.name} has no KV heads to regroup", where=f"--compare {grouping}"
        )

    def heads(layer: AttentionLayer) -> int:
        if grouping == "mqa":
            return 1
        if grouping == "mha":
            return model.heads
        return layer.kv_heads if layer.kv_heads < model.heads else model.heads // _USUAL_GROUP

    def regroup(layer: Layer) -> Layer:
        if isinstance(layer, AttentionLayer):
            return replace(layer, kv_heads=heads(layer))
        return layer

    return replace(model, layers=tuple(regroup(layer) for layer in model.layers))


def figures(
    variant: Variant, memory: Memory, contexts: Sequence[Tokens], requests: int | None
) -> Mapping[str, Any]:
    """All figures of one variant.

    Raises:
        InputError, UnsupportedModel: as the theory raises them.
    """
    model, settings = variant.model, variant.settings
    budget, missing = _budget(model, settings, memory, contexts)
    available = memory.kv_bytes if budget is None else budget.kv_bytes
    capacity = predict_capacity(model, settings, None if available is None else max(available, 0))
    roofline, no_roofline = _roofline(variant, memory, capacity, contexts, requests)
    missing = (*missing, *no_roofline)
    if memory.total_bytes is None and memory.kv_bytes is None:
        missing = (_ADD_MEMORY,)
    notes = [*capacity.notes, *missing, *_notes(model, settings, capacity, contexts, available)]
    if memory.gpu is not None:
        notes.append(memory_note(memory.gpu))
    return {
        "model": model.name,
        **({"variant": variant.name} if variant.name else {}),
        "kv_cache_dtype": capacity.kv_cache_dtype,
        "kv_bytes_per_token": capacity.kv_bytes_per_token,
        "kv_bytes_per_token_unsplit": _unsplit(model, settings),
        "bytes_per_further_token": capacity.bytes_per_further_token,
        "fixed_bytes_per_request": capacity.fixed_bytes_per_request,
        "block_size": capacity.block_size,
        "bytes_per_block": capacity.bytes_per_block,
        "layer_groups": [asdict(group) for group in capacity.layer_groups],
        "per_context": [_per_context(capacity, tokens, requests, budget) for tokens in contexts],
        "kv_cache_memory_bytes": available,
        "num_blocks": capacity.num_blocks,
        "kv_cache_tokens": capacity.kv_cache_tokens,
        "max_model_len": capacity.max_model_len,
        "max_concurrency_at_max_model_len": capacity.max_concurrency,
        "memory": None if budget is None else _memory_json(budget),
        "roofline": roofline,
        "notes": notes,
    }


def _per_context(
    capacity: KvCapacity, tokens: Tokens, requests: int | None, budget: MemoryBudget | None
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "context_tokens": tokens,
        "blocks_per_request": capacity.blocks_per_request(tokens),
        "kv_bytes_per_request": capacity.kv_bytes_per_request(tokens),
        "max_concurrency": capacity.concurrency(tokens),
    }
    if requests is not None:
        need = requirement(capacity, requests, tokens, budget=budget)
        row |= {
            "requests": requests,
            "kv_bytes_for_requests": requests * capacity.kv_bytes_per_request(tokens),
            "kv_cache_memory_bytes_to_set": need.kv_bytes,
            "memory_bytes_for_requests": need.memory_bytes,
            "gpu_memory_utilization_to_set": need.utilization,
        }
    return row


def _unsplit(model: ModelSpec, settings: EngineSettings) -> Bytes:
    """A token's bytes where one GPU keeps all heads: that of the settings, split by nothing."""
    whole = replace(settings, tensor_parallel_size=1, decode_context_parallel_size=1)
    return predict_capacity(model, whole, None).kv_bytes_per_token


def _budget(
    model: ModelSpec, settings: EngineSettings, memory: Memory, contexts: Sequence[Tokens]
) -> tuple[MemoryBudget | None, tuple[str, ...]]:
    if memory.total_bytes is None:
        return None, ()
    longest = settings.max_model_len or model.max_model_len
    served = max((tokens for tokens in contexts if tokens <= longest), default=longest)
    try:
        budget = plan_budget(
            model,
            settings,
            memory.total_bytes,
            utilization=memory.utilization,
            weights_bytes=memory.weights_bytes,
            overhead_bytes=memory.overhead_bytes,
            context_tokens=served,
        )
    except ModelConfigError as error:
        return None, (f"no memory budget: {error.what}",)
    return budget, ()


def _memory_json(budget: MemoryBudget) -> dict[str, Any]:
    return {
        "total_bytes": budget.total_bytes,
        "gpu_memory_utilization": budget.utilization,
        "terms": [asdict(term) for term in budget.terms],
        "kv_bytes": budget.kv_bytes,
        "fits": budget.fits,
        "levers": [asdict(lever) for lever in budget.levers],
    }


def _roofline(
    variant: Variant,
    memory: Memory,
    capacity: KvCapacity,
    contexts: Sequence[Tokens],
    requests: int | None,
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """Lower bounds on the given GPU; None without one, or with the reason why there are none."""
    model, settings = variant.model, variant.settings
    if memory.gpu is None:
        return None, ()
    try:
        ceilings = ceilings_of(memory.gpu, model, settings)
        rows = [
            {
                "context_tokens": tokens,
                "ttft_s": prefill_work(model, settings, tokens).least_time(ceilings),
                "tpot_s": decode_work(model, settings, [tokens]).least_time(ceilings),
                **_together(variant, ceilings, capacity.concurrency(tokens), tokens, requests),
            }
            for tokens in contexts
        ]
        found = {
            "device": ceilings.device,
            "source": ceilings.source,
            "bandwidth_bytes_per_s": ceilings.bandwidth_bytes_per_s,
            "flops_per_s": ceilings.flops_per_s,
            "per_context": rows,
            "compute_bound_batch": compute_bound_batch(model, settings, ceilings, contexts[0]),
            "kv_exceeds_weights_at_tokens": kv_exceeds_weights_at(model, settings),
        }
    except KvbenchError as error:
        return None, (f"no bounds on speed: {error.what}",)
    return found, ()


def _together(
    variant: Variant,
    ceilings: Ceilings,
    fitting: float | None,
    tokens: Tokens,
    requests: int | None,
) -> dict[str, Any]:
    """Most tokens/s with so many requests at once, each at its full length: those that fit."""
    counts = [count for count in (requests, None if fitting is None else int(fitting)) if count]
    together = min(counts, default=None) if fitting is None or fitting >= 1 else None
    rate = None
    if together is not None:
        step = decode_work(variant.model, variant.settings, [tokens] * together)
        rate = together / step.least_time(ceilings)
    return {"requests_at_once": together, "output_tokens_per_s": rate}


def _notes(
    model: ModelSpec,
    settings: EngineSettings,
    capacity: KvCapacity,
    contexts: Sequence[Tokens],
    available: Bytes | None,
) -> list[str]:
    notes = []
    if (why := kv_dtype_unserved(model, settings)) is not None:
        notes.append(f"{why}: the engine would not start")
    if settings.tensor_parallel_size * settings.pipeline_parallel_size > 1:
        notes.append("bytes, blocks and memory are per GPU")
    if available is not None and available <= 0:
        notes.append("nothing is left for the KV cache: the model does not fit like this")
    elif capacity.max_concurrency is not None and capacity.max_concurrency < 1:
        notes.append("one request of max_model_len does not fit: the engine would refuse to start")
    if max(contexts) > capacity.max_model_len:
        longest = format_count(capacity.max_model_len)
        notes.append(f"contexts beyond max_model_len {longest} can't be served")
    if capacity.max_concurrency is not None:
        notes.append("concurrency is the worst case: every request at its full length")
    if _is_chapters(model, settings):
        notes.append(_ERRATUM)
    return notes


def _is_chapters(model: ModelSpec, settings: EngineSettings) -> bool:
    if resolved_kv_dtype(model, settings).layout != "dense" or not model.attention_layers:
        return False
    dim = model.attention_layers[0].head_dim
    return (model.layer_count, model.heads, dim) == _CHAPTER_SHAPE and not model.uses_mla
