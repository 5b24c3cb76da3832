"""Bytes of a model's weights on one GPU, counted from its config.

Method: every matrix of every layer is a term of so many elements; tensor parallelism splits it or
replicates it, pipeline parallelism puts it on one stage; the checkpoint's quantisation sets the
bytes of the linear layers. The rotary table and the absorbed copies that latent attention makes
are counted too, since the engine's "model loading took" does. Not covered: LoRA, encoders other
than a plain vision tower, and modules that a quantised checkpoint leaves out by name patterns
(a note says so).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from harness.specs.blocks import FeedForward, feed_forward, layer_letters
from harness.specs.fields import Fields, readable
from harness.specs.kv_dtype import element_bytes
from harness.specs.layers import AttentionLayer, ConvState, MatrixState, RecurrentLayer
from harness.specs.model import ModelSpec
from harness.specs.quantization import quantization, weight_bits
from harness.theory.groups import stage_of
from harness.theory.kv import ceil_div, model_dtype
from harness.theory.settings import EngineSettings
from harness.units import Bytes

Part = Literal[
    "embedding",
    "head",
    "attention",
    "mlp",
    "experts",
    "router",
    "recurrent",
    "norm",
    "vision",
    "rotary table",
]
#: Vocabularies are padded so that every rank gets whole tiles.
_VOCABULARY_TILE = 64
#: Parts that a quantised checkpoint stores in its own format.
_QUANTISED: frozenset[Part] = frozenset({"attention", "mlp", "experts", "recurrent"})

#: Parts made of linear layers that the CPU backend packs anew; experts have a path of their own.
_LINEAR_PARTS: frozenset[Part] = frozenset({"attention", "mlp", "router", "recurrent"})


@dataclass(frozen=True, slots=True)
class WeightTerm:
    """Elements of one matrix on one GPU.

    ``layer`` is None outside the decoder layers (the embedding is on the first pipeline stage,
    the head on the last). ``used`` is the share of it that one token touches.
    """

    part: Part
    layer: int | None
    elements: float
    used: float = 1.0


@dataclass(frozen=True, slots=True)
class WeightFootprint:
    """Weight bytes of the fullest GPU, per part, and what they rest on."""

    bytes_per_gpu: Bytes
    by_part: Mapping[Part, Bytes]
    parameters: int
    notes: tuple[str, ...]


def weight_footprint(model: ModelSpec, settings: EngineSettings) -> WeightFootprint:
    """Count the weights on the fullest GPU.

    Raises:
        ModelConfigError: the config lacks a field that weights need (vocabulary, widths).
    """
    terms = tuple(weight_terms(model, settings))
    stages = settings.pipeline_parallel_size
    held = [
        [term for term in terms if _stage(term, model.layer_count, stages) == stage]
        for stage in range(stages)
    ]
    fullest = max(held, key=lambda kept: sum(_bytes(term, model, settings) for term in kept))
    by_part: dict[Part, float] = {}
    for term in fullest:
        by_part[term.part] = by_part.get(term.part, 0.0) + _bytes(term, model, settings)
    return WeightFootprint(
        bytes_per_gpu=round(sum(by_part.values())),
        by_part={part: round(count) for part, count in by_part.items()},
        parameters=parameter_count(model),
        notes=_notes(model),
    )


def parameter_count(model: ModelSpec) -> int:
    """Parameters of the whole model, all experts included."""
    terms = weight_terms(model, EngineSettings())
    return round(sum(term.elements for term in terms if term.part != "rotary table"))


def element_size(term: WeightTerm, model: ModelSpec, settings: EngineSettings) -> float:
    """Bytes of one element of this term, quantisation scales included."""
    bits = weight_bits(Fields(model.config, model.name), settings.quantization)
    quantised = bits is not None and term.part in _QUANTISED
    if quantised and bits is not None and (not bits.only_experts or term.part == "experts"):
        return bits.bits / 8
    return float(element_bytes(model_dtype(model, settings)))


def _bytes(term: WeightTerm, model: ModelSpec, settings: EngineSettings) -> float:
    return term.elements * element_size(term, model, settings)


def _stage(term: WeightTerm, layer_count: int, stages: int) -> int:
    if term.layer is not None:
        return stage_of(term.layer, layer_count, stages)
    return stages - 1 if term.part == "head" else 0


def _notes(model: ModelSpec) -> tuple[str, ...]:
    section = quantization(Fields(model.config, model.name))
    if section is None:
        return ()
    method = section.get("quant_method", "a quantisation")
    return (f"weights stored by {method}: modules that it leaves out by name are not told apart",)


# --- the terms -----------------------------------------------------------------------------------


def weight_terms(model: ModelSpec, settings: EngineSettings) -> Iterator[WeightTerm]:
    """All matrices of the model as one GPU holds them, all pipeline stages together."""
    with readable(model.name):
        yield from _terms(model, settings)


def _terms(model: ModelSpec, settings: EngineSettings) -> Iterator[WeightTerm]:
    fields = Fields(model.config, model.name)
    tp = settings.tensor_parallel_size
    yield from _vocabulary(fields, tp)
    yield from _mixers(model, fields, tp)
    yield from _blocks(fields, tp)
    yield WeightTerm("norm", None, (2 * fields.layer_count + 1) * fields.hidden_size)
    yield from _rotary(model, fields)
    vision = model.outer.get("vision_config")
    if isinstance(vision, Mapping):
        section = Fields(vision, f"vision_config of {model.name}")
        yield WeightTerm("vision", None, _tower(section, fields.hidden_size) / tp, used=0.0)


def _vocabulary(fields: Fields, tp: int) -> Iterator[WeightTerm]:
    size = fields.integer("vocab_size", "padded_vocab_size")
    padded = ceil_div(size, _VOCABULARY_TILE * tp) * _VOCABULARY_TILE
    width = fields.hidden_size
    # A lookup reads one row; a tied table is read in full by the output.
    tied = fields.flag("tie_word_embeddings")
    yield WeightTerm("head", None, padded * width)
    if not tied:
        yield WeightTerm("embedding", None, padded * width, used=0.0)
    if per_layer := fields.optional_integer("hidden_size_per_layer_input"):
        rows = fields.optional_integer("vocab_size_per_layer_input") or size
        yield WeightTerm("embedding", None, rows * per_layer * fields.layer_count / tp, used=0.0)


def _mixers(model: ModelSpec, fields: Fields, tp: int) -> Iterator[WeightTerm]:
    cached = {layer.index for layer in model.attention_layers}
    for layer in model.attention_layers:
        yield WeightTerm("attention", layer.index, _attention(layer, fields, tp))
    for recurrent in model.recurrent_layers:
        yield WeightTerm("recurrent", recurrent.index, _recurrent(recurrent, fields) / tp)
    if fields.optional_integer("num_kv_shared_layers") and model.attention_layers:
        # Layers that reuse another layer's cache still have query and output projections.
        queries = 2 * fields.hidden_size * fields.heads * fields.head_dim / tp
        for index in range(fields.layer_count):
            if index not in cached:
                yield WeightTerm("attention", index, queries)


def _attention(layer: AttentionLayer, fields: Fields, tp: int) -> float:
    width, heads = fields.hidden_size, fields.heads
    if layer.kind == "mla":
        return _latent(fields, tp)
    gated = 2 if fields.flag("attn_output_gate") or fields.model_type == "qwen3_next" else 1
    query = width * heads * layer.head_dim * gated / tp
    output = heads * layer.head_dim_v * width / tp
    kept = max(layer.kv_heads / tp, 1)
    return query + output + width * kept * (layer.head_dim + layer.head_dim_v)


def _latent(fields: Fields, tp: int) -> float:
    """Down- and up-projections of latent attention, and the absorbed copies of the latter."""
    width, heads = fields.hidden_size, fields.heads
    latent, rope = fields.integer("kv_lora_rank"), fields.optional_integer("qk_rope_head_dim") or 0
    plain, value = fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    query_rank = fields.optional_integer("q_lora_rank")
    per_head = plain + rope
    query = (
        width * query_rank + query_rank * heads * per_head / tp
        if query_rank
        else width * heads * per_head / tp
    )
    up = latent * heads * (plain + value) / tp
    return query + width * (latent + rope) + 2 * up + heads * value * width / tp


def _recurrent(layer: RecurrentLayer, fields: Fields) -> float:
    """Input and output projections of a recurrent layer, its convolution, its small tables."""
    conv = next(state for state in layer.states if isinstance(state, ConvState))
    matrix = next((state for state in layer.states if isinstance(state, MatrixState)), None)
    channels = conv.width + conv.groups * conv.grouped_width
    filters = channels * conv.kernel
    width = fields.hidden_size
    if matrix is None:
        return width * 3 * channels + channels * width + filters
    if fields.optional_integer("linear_num_value_heads"):
        inner = matrix.heads * fields.integer("linear_value_head_dim")
        return width * (channels + inner + 2 * matrix.heads) + inner * width + filters
    if fields.get("linear_attn_config"):
        return _kimi_delta(channels // 3, matrix, width) + filters
    if conv.groups:
        return width * (conv.width + channels + matrix.heads) + conv.width * width + filters
    rank = fields.optional_integer("mamba_dt_rank", "time_step_rank") or ceil_div(width, 16)
    state = matrix.elements_per_head
    inside = conv.width * (rank + 2 * state) + rank * conv.width + conv.width * state
    return width * 2 * conv.width + inside + conv.width * width + filters


def _kimi_delta(inner: int, matrix: MatrixState, width: int) -> float:
    dim = inner // matrix.heads
    gates = 2 * (width * dim + dim * inner) + width * matrix.heads
    return 4 * width * inner + gates


def _blocks(fields: Fields, tp: int) -> Iterator[WeightTerm]:
    letters = layer_letters(fields)
    for index in range(fields.layer_count):
        block = feed_forward(fields, index, letters[index] if letters else "")
        if block is not None:
            yield from _block(block, index, fields.hidden_size, tp)


def _block(block: FeedForward, index: int, width: int, tp: int) -> Iterator[WeightTerm]:
    dense = sum(block.dense_widths) * width * block.matrices / tp
    if dense:
        yield WeightTerm("mlp", index, dense)
    if block.experts:
        experts = block.experts * block.expert_width * width * block.matrices / tp
        yield WeightTerm("experts", index, experts, used=block.experts_used / block.experts)
        yield WeightTerm("router", index, block.experts * width)


def _rotary(model: ModelSpec, fields: Fields) -> Iterator[WeightTerm]:
    """One table of cosines and sines per distinct head size and kind, shared by all layers."""
    length = fields.optional_integer("max_position_embeddings", "seq_length")
    if length is None or not _has_rotary(fields):
        return
    share = fields.number("partial_rotary_factor", 1.0)
    kinds = {
        (layer.head_dim, layer.kind if _LOCAL_BASE & fields.config.keys() else "")
        for layer in model.attention_layers
        if layer.kind != "mla"
    }
    for dim, _ in kinds:
        yield WeightTerm("rotary table", None, length * dim * share, used=0.0)
    if model.uses_mla:
        rope = fields.optional_integer("qk_rope_head_dim") or 0
        yield WeightTerm("rotary table", None, length * rope, used=0.0)


_LOCAL_BASE = frozenset({"rope_local_base_freq", "sliding_window_pattern", "global_head_dim"})
_UNROTATED = frozenset({"gpt2", "opt", "bloom", "mpt", "gpt_bigcode", "nemotron_h", "jamba"})


def _has_rotary(fields: Fields) -> bool:
    return fields.model_type not in _UNROTATED


def _tower(vision: Fields, text_width: int) -> float:
    """A vision transformer: patches, layers, positions, and the projection to the text width."""
    width = vision.integer("hidden_size")
    depth = vision.integer("depth", "num_hidden_layers")
    inner = vision.integer("intermediate_size")
    matrices = 3 if "gemma4" in vision.model_type else 2
    layers = depth * (4 * width * width + matrices * width * inner)
    merge = vision.optional_integer("spatial_merge_size")
    merged = width * (1 if merge is None else merge) ** 2
    stated = vision.optional_integer("out_hidden_size")
    into = text_width if stated is None else stated
    bridge = (merged * merged + merged * into) if merged != width else width * text_width
    deep = len(vision.listed("deepstack_visual_indexes") or ())
    positions = (vision.optional_integer("num_position_embeddings") or 0) * width
    table = (vision.optional_integer("position_embedding_size") or 0) * 2 * width
    return layers + bridge * (1 + deep) + positions + table


def repacked_bytes(footprint: WeightFootprint) -> Bytes:
    """What the CPU backend holds beside the weights: the packed copies of its linear layers.

    It repacks each linear layer for oneDNN and drops the original, but the allocator keeps what
    that frees, so a worker holds the linear weights about twice (0.9 % to 2.4 % of the memory
    taken was off in the runs behind ``docs/measurement.md``). Source: vLLM 0.32.0,
    ``model_executor/layers/utils.py`` (``dispatch_cpu_unquantized_gemm``).
    """
    return sum(size for part, size in footprint.by_part.items() if part in _LINEAR_PARTS)
