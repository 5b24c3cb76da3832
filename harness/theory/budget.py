"""What a GPU has left for the KV cache, term by term, and what would change it.

Method: ``gpu_memory_utilization × total − weights − activation peak − CUDA graphs − context``.
Every term carries the assumption it rests on. The result may be negative: that is an answer (the
model does not fit), not an error. The inverse gives the memory that N requests of L tokens need.

Not covered: memory of other processes, and the exact activation peak, which only the engine's own
profiling run knows; the figure here is an estimate and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from harness.errors import InputError
from harness.specs.blocks import feed_forward, layer_letters
from harness.specs.fields import Fields
from harness.specs.kv_dtype import element_bytes
from harness.specs.model import ModelSpec
from harness.specs.quantization import quantization
from harness.theory.capacity import KvCapacity, predict_capacity
from harness.theory.kv import model_dtype
from harness.theory.settings import EngineSettings
from harness.theory.unserved import kv_dtype_unserved
from harness.theory.weights import weight_footprint
from harness.units import MIB, Bytes, Tokens

#: The pinned engine's default (it was 0.90 until 0.23).
DEFAULT_UTILIZATION = 0.92
#: CUDA context and library workspaces of one process; collectives take more.
_CONTEXT = 350 * MIB
_COLLECTIVES = 700 * MIB
_GRAPHS = 600 * MIB
_GRAPHS_TERM = "CUDA graphs"
#: A share of the memory that servers are often started with.
_MOST_SHARE = 0.95
#: Hidden states alive at the widest point: residual, normed input, attention output, block output.
_LIVE_HIDDEN_STATES = 4
#: gpt-oss-120b on four GPUs loads 17.22 GiB of which 15.21 are counted (a published start-up line).
_MXFP4_LOADS = 1.13


@dataclass(frozen=True, slots=True)
class BudgetTerm:
    """One share of the GPU's memory and what the figure rests on. Bytes may be an estimate."""

    name: str
    bytes: Bytes
    assumption: str


@dataclass(frozen=True, slots=True)
class Lever:
    """Something that can be changed, and what it gains.

    ``requests`` of ``context_tokens`` fit on all GPUs together once it is changed. ``gained_bytes``
    is the same in bytes of one GPU: by how much the pool would have to grow, all else unchanged.
    """

    change: str
    gained_bytes: Bytes
    context_tokens: Tokens
    requests: float


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Where one GPU's memory goes. ``kv_bytes`` may be negative: the rest already exceeds it."""

    total_bytes: Bytes
    utilization: float
    terms: tuple[BudgetTerm, ...]
    kv_bytes: Bytes
    levers: tuple[Lever, ...]

    @property
    def fits(self) -> bool:
        """Whether anything at all is left for the KV cache."""
        return self.kv_bytes > 0


def kv_bytes_left(total: Bytes, utilization: float, terms: Iterable[BudgetTerm]) -> Bytes:
    """What is left of the share that the engine may use; negative where nothing is."""
    return int(total * utilization) - sum(term.bytes for term in terms)


def plan_budget(
    model: ModelSpec,
    settings: EngineSettings,
    total_bytes: Bytes,
    *,
    utilization: float = DEFAULT_UTILIZATION,
    weights_bytes: Bytes | None = None,
    overhead_bytes: Bytes | None = None,
    context_tokens: Tokens | None = None,
) -> MemoryBudget:
    """Itemise one GPU's memory; given weights or overhead replace the estimates.

    Levers are told in requests of ``context_tokens``, ``max_model_len`` where that is None.

    Raises:
        ModelConfigError: weights must be counted and the config lacks what that needs.
    """
    card = _Card(model, settings, total_bytes, utilization, weights_bytes, overhead_bytes)
    length = context_tokens or settings.max_model_len or model.max_model_len
    return MemoryBudget(total_bytes, utilization, card.terms(), card.kv(), _levers(card, length))


@dataclass(frozen=True, slots=True)
class _Card:
    """The arguments of ``plan_budget``; ``spared`` is what a lever takes from the overheads."""

    model: ModelSpec
    settings: EngineSettings
    total: Bytes
    utilization: float
    weights: Bytes | None
    overhead: Bytes | None
    spared: Bytes = 0

    def terms(self) -> tuple[BudgetTerm, ...]:
        return (
            _weights(self.model, self.settings, self.weights),
            *_overheads(self.model, self.settings, self.overhead),
        )

    def kv(self) -> Bytes:
        return kv_bytes_left(self.total, self.utilization, self.terms()) + self.spared


def _weights(model: ModelSpec, settings: EngineSettings, given: Bytes | None) -> BudgetTerm:
    if given is not None:
        return BudgetTerm("weights", given, "as given")
    counted = weight_footprint(model, settings).bytes_per_gpu
    method = _weight_method(model, settings)
    if method == "mxfp4":
        return BudgetTerm(
            "weights",
            int(counted * _MXFP4_LOADS),
            f"counted from the config, per GPU, × {_MXFP4_LOADS}: MXFP4 is padded as it is loaded",
        )
    told = "counted from the config, per GPU"
    if method is not None:
        told += f"; estimate: what {method} leaves plain or pads is not told apart"
    return BudgetTerm("weights", counted, told)


def _weight_method(model: ModelSpec, settings: EngineSettings) -> str | None:
    """How the weights are quantised, in the checkpoint's word or the flag's; None if plain."""
    section = quantization(Fields(model.config, model.name))
    if section is None:
        return settings.quantization
    return str(section.get("quant_method", "a quantisation")).lower()


def _overheads(
    model: ModelSpec, settings: EngineSettings, given: Bytes | None
) -> tuple[BudgetTerm, ...]:
    if given is not None:
        return (BudgetTerm("activations and overhead", given, "as given"),)
    many = settings.tensor_parallel_size * settings.pipeline_parallel_size > 1
    return (
        BudgetTerm(
            "activation peak",
            activation_bytes(model, settings),
            f"estimate for a step of {settings.batch_tokens:,} tokens",
        ),
        BudgetTerm(_GRAPHS_TERM, _GRAPHS, "assumed; none with enforce_eager"),
        BudgetTerm(
            "CUDA context",
            _CONTEXT + (_COLLECTIVES if many else 0),
            "assumed" + (", with collectives" if many else ""),
        ),
    )


def activation_bytes(model: ModelSpec, settings: EngineSettings) -> Bytes:
    """Estimate of the peak while one full step runs: hidden states, the widest block, the logits.

    It grows with ``max_num_batched_tokens``, not with the context length.
    """
    fields = Fields(model.config, model.name)
    size = element_bytes(model_dtype(model, settings))
    width = _widest_block(fields) / settings.tensor_parallel_size
    per_token = _LIVE_HIDDEN_STATES * fields.hidden_size + width
    logits = settings.max_num_seqs * fields.integer("vocab_size", "padded_vocab_size")
    # The sampler works on fp32 logits and a copy of them.
    sampling = logits * (size + 2 * 4) // settings.tensor_parallel_size
    return int(settings.batch_tokens * per_token * size + sampling)


def _widest_block(fields: Fields) -> int:
    """Elements that one token keeps alive inside the widest feed-forward block."""
    letters = layer_letters(fields)
    widest = 0
    for index in range(fields.layer_count):
        block = feed_forward(fields, index, letters[index] if letters else "")
        if block is not None:
            wide = max(sum(block.dense_widths), block.experts_used * block.expert_width)
            widest = max(widest, wide * block.matrices)
    return widest


# --- levers --------------------------------------------------------------------------------------


def _levers(card: _Card, context: Tokens) -> tuple[Lever, ...]:
    """What gains room, most first; a change that the model can't be split by is left out."""
    found = (_lever(change, card, changed, context) for change, changed in _changes(card))
    kept = (lever for lever in found if lever is not None and lever.gained_bytes > 0)
    return tuple(sorted(kept, key=lambda lever: lever.gained_bytes, reverse=True))


def _lever(change: str, card: _Card, changed: _Card, context: Tokens) -> Lever | None:
    try:
        before = predict_capacity(card.model, card.settings, None)
        pool = changed.kv()
        after = predict_capacity(changed.model, changed.settings, max(pool, 0))
    except InputError:
        return None
    worth = before.kv_bytes_per_request(context) / after.kv_bytes_per_request(context)
    # A pool that is not there holds nothing more for being cut otherwise.
    gained = int(pool * worth if pool > 0 else pool) - card.kv()
    return Lever(change, gained, context, after.concurrency(context) or 0.0)


def _changes(card: _Card) -> Iterator[tuple[str, _Card]]:
    settings, terms = card.settings, card.terms()
    halved = None if card.weights is None else card.weights // 2
    wider = replace(settings, tensor_parallel_size=2 * settings.tensor_parallel_size)
    yield "twice the GPUs (tensor_parallel_size × 2)", replace(card, settings=wider, weights=halved)
    if _weight_method(card.model, settings) is None:
        packed = replace(settings, quantization="fp8")
        yield "8-bit weights instead of 16-bit", replace(card, settings=packed, weights=halved)
    if card.utilization < _MOST_SHARE:
        yield f"gpu_memory_utilization {_MOST_SHARE}", replace(card, utilization=_MOST_SHARE)
    graphs = sum(term.bytes for term in terms if term.name == _GRAPHS_TERM)
    yield "enforce_eager: no CUDA graphs, slower decode", replace(card, spared=graphs)
    smaller = replace(settings, max_num_batched_tokens=max(settings.batch_tokens // 2, 1))
    yield "half of max_num_batched_tokens", replace(card, settings=smaller)
    eight = replace(settings, kv_cache_dtype="fp8")
    if kv_dtype_unserved(card.model, eight) is None:
        yield "kv_cache_dtype fp8: a token takes fewer bytes", replace(card, settings=eight)


# --- the inverse ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Requirement:
    """What N requests of L tokens need on each GPU.

    ``utilization`` is ``gpu_memory_utilization`` for a GPU of the given size; above 1 it does not
    fit, None where no GPU was given.
    """

    requests: int
    context_tokens: Tokens
    kv_bytes: Bytes
    memory_bytes: Bytes | None
    utilization: float | None


def required_kv_bytes(capacity: KvCapacity, requests: int, context_tokens: Tokens) -> Bytes:
    """Bytes for ``--kv-cache-memory-bytes`` that let N requests of L tokens run at once.

    One block more than they hold: the engine keeps one back.
    """
    blocks = ceil(requests * capacity.blocks_per_request(context_tokens)) + 1
    return blocks * capacity.bytes_per_block


def requirement(
    capacity: KvCapacity,
    requests: int,
    context_tokens: Tokens,
    *,
    budget: MemoryBudget | None = None,
) -> Requirement:
    """The memory that N requests of L tokens need, and the utilisation it means on a GPU."""
    kv = required_kv_bytes(capacity, requests, context_tokens)
    if budget is None:
        return Requirement(requests, context_tokens, kv, None, None)
    memory = kv + sum(term.bytes for term in budget.terms)
    return Requirement(requests, context_tokens, kv, memory, memory / budget.total_bytes)
