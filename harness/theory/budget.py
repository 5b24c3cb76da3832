"""What a GPU has left for the KV cache, term by term, and what would change it.

Method: ``gpu_memory_utilization × total − weights − activation peak − CUDA graphs − context``.
Every term carries the assumption it rests on. The result may be negative: that is an answer (the
model does not fit), not an error. The inverse gives the memory that N requests of L tokens need.

Not covered: memory of other processes, and the exact activation peak, which only the engine's own
profiling run knows; the figure here is an estimate and says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from harness.specs.blocks import feed_forward, layer_letters
from harness.specs.fields import Fields
from harness.specs.kv_dtype import element_bytes
from harness.specs.model import ModelSpec
from harness.theory.capacity import KvCapacity, predict_capacity
from harness.theory.kv import model_dtype
from harness.theory.settings import EngineSettings
from harness.theory.weights import weight_footprint
from harness.units import MIB, Bytes, Tokens

#: The pinned engine's default (it was 0.90 until 0.23).
DEFAULT_UTILIZATION = 0.92
#: CUDA context and library workspaces of one process; collectives take more.
_CONTEXT = 350 * MIB
_COLLECTIVES = 700 * MIB
_GRAPHS = 600 * MIB
#: Hidden states alive at the widest point: residual, normed input, attention output, block output.
_LIVE_HIDDEN_STATES = 4


@dataclass(frozen=True, slots=True)
class BudgetTerm:
    """One share of the GPU's memory and what the figure rests on. Bytes may be an estimate."""

    name: str
    bytes: Bytes
    assumption: str


@dataclass(frozen=True, slots=True)
class Lever:
    """Something that can be changed, and the KV bytes (or their equivalent) that it gains."""

    change: str
    gained_bytes: Bytes


@dataclass(frozen=True, slots=True)
class Budget:
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
) -> Budget:
    """Itemise one GPU's memory; given weights or overhead replace the estimates.

    Raises:
        ModelConfigError: weights must be counted and the config lacks what that needs.
    """
    terms = (
        _weights(model, settings, weights_bytes),
        *_overheads(model, settings, overhead_bytes),
    )
    kv = kv_bytes_left(total_bytes, utilization, terms)
    levers = _levers(model, settings, total_bytes, utilization, terms, kv)
    return Budget(total_bytes, utilization, terms, kv, levers)


def _weights(model: ModelSpec, settings: EngineSettings, given: Bytes | None) -> BudgetTerm:
    if given is not None:
        return BudgetTerm("weights", given, "as given")
    counted = weight_footprint(model, settings).bytes_per_gpu
    return BudgetTerm("weights", counted, "counted from the config, per GPU")


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
        BudgetTerm("CUDA graphs", _GRAPHS, "assumed; none with enforce_eager"),
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


def _levers(
    model: ModelSpec,
    settings: EngineSettings,
    total: Bytes,
    utilization: float,
    terms: tuple[BudgetTerm, ...],
    kv: Bytes,
) -> tuple[Lever, ...]:
    weights = terms[0].bytes
    found = [
        Lever("twice the GPUs (tensor_parallel_size × 2): weights are halved", weights // 2),
        Lever("8-bit weights instead of 16-bit", weights // 2 if _plain(model) else 0),
        Lever(
            "gpu_memory_utilization 0.95",
            max(0, int(total * 0.95) - int(total * utilization)),
        ),
        Lever("enforce_eager: no CUDA graphs, slower decode", _named(terms, "CUDA graphs")),
        Lever("half of max_num_batched_tokens", _named(terms, "activation peak") // 2),
    ]
    if kv > 0 and _halves_with_fp8(model, settings):
        found.append(Lever("kv_cache_dtype fp8: each byte holds twice the tokens", kv))
    kept = (lever for lever in found if lever.gained_bytes > 0)
    return tuple(sorted(kept, key=lambda lever: lever.gained_bytes, reverse=True))


def _plain(model: ModelSpec) -> bool:
    return model.config.get("quantization_config") is None


def _named(terms: tuple[BudgetTerm, ...], name: str) -> Bytes:
    return sum(term.bytes for term in terms if term.name == name)


def _halves_with_fp8(model: ModelSpec, settings: EngineSettings) -> bool:
    plain = predict_capacity(model, settings, None)
    packed = predict_capacity(model, replace(settings, kv_cache_dtype="fp8"), None)
    return 2 * packed.kv_bytes_per_token == plain.kv_bytes_per_token


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
    budget: Budget | None = None,
) -> Requirement:
    """The memory that N requests of L tokens need, and the utilisation it means on a GPU."""
    kv = required_kv_bytes(capacity, requests, context_tokens)
    if budget is None:
        return Requirement(requests, context_tokens, kv, None, None)
    memory = kv + sum(term.bytes for term in budget.terms)
    return Requirement(requests, context_tokens, kv, memory, memory / budget.total_bytes)
