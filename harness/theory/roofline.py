"""The least time a prefill or a decode step can take, and what follows for latency and throughput.

Method: count the floating-point operations that must be done and the bytes that must be moved,
and divide each by the device's peak; the larger quotient is a lower bound. Weights are read once
per step (of a mixture of experts only the experts that the batch is expected to touch), KV is
read as far back as each layer sees: everything, a window, or what an eviction rule keeps. The
bounds assume perfect overlap, perfect split over GPUs and no communication: a real server is
slower, never faster. A measurement beyond a ceiling means that one of the two is wrong
(``beyond`` says so).

Not covered: speculation, vision towers, cascaded or shared-prefix reads, quantisation overheads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.specs.gpu import GpuSpec
from harness.specs.layers import AttentionLayer
from harness.specs.model import ModelSpec
from harness.theory.eviction import least_prefill_pairs, tokens_read
from harness.theory.kv import CacheSpec, LayerCache, layer_caches
from harness.theory.settings import EngineSettings
from harness.theory.snapkv import snapkv_tokens_read
from harness.theory.weights import WeightTerm, element_size, weight_terms
from harness.units import Seconds, Tokens

#: A measurement may exceed a bound by rounding and clock jitter, not by more.
_TOLERANCE = 0.02
_LARGEST_BATCH = 1 << 16
_LONGEST_CONTEXT: Tokens = 1 << 24


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What one device can do at best: bytes/s, FLOP/s at the weights' precision, and by whom."""

    device: str
    bandwidth_bytes_per_s: float
    flops_per_s: float
    source: str


def ceilings_of(gpu: GpuSpec, model: ModelSpec, settings: EngineSettings) -> Ceilings:
    """Data-sheet ceilings: the 8-bit rate counts where the linear layers are stored in 8 bits."""
    linear = WeightTerm("mlp", 0, 1)
    narrow = element_size(linear, model, settings) < 1.5
    rate = gpu.flops_8bit if narrow and gpu.flops_8bit is not None else gpu.flops_16bit
    return Ceilings(gpu.name, gpu.bandwidth_bytes_per_s, rate, gpu.source)


@dataclass(frozen=True, slots=True)
class Work:
    """What a step must do on one GPU, at least."""

    flops: float
    weight_bytes: float
    kv_bytes: float

    def least_time(self, ceilings: Ceilings) -> Seconds:
        """The longer of computing and moving."""
        moved = (self.weight_bytes + self.kv_bytes) / ceilings.bandwidth_bytes_per_s
        return max(self.flops / ceilings.flops_per_s, moved)

    def compute_bound(self, ceilings: Ceilings) -> bool:
        """Whether computing takes longer than moving."""
        moved = (self.weight_bytes + self.kv_bytes) / ceilings.bandwidth_bytes_per_s
        return self.flops / ceilings.flops_per_s >= moved


# --- counting ------------------------------------------------------------------------------------


def prefill_work(model: ModelSpec, settings: EngineSettings, prompt_tokens: Tokens) -> Work:
    """One prompt: linear layers on every token, causal attention, logits of the last position.

    Weights are read once per chunk of ``max_num_batched_tokens``; KV is written once (reads of
    it within the prompt can stay on the chip).
    """
    terms = tuple(weight_terms(model, settings))
    chunks = -(-prompt_tokens // settings.batch_tokens)
    last = prompt_tokens - (chunks - 1) * settings.batch_tokens
    read = sum(
        _read_bytes(terms, model, settings, tokens)
        for tokens in (settings.batch_tokens,) * (chunks - 1) + (last,)
    )
    flops = _linear_flops(terms, prompt_tokens, positions_with_logits=1)
    caches = layer_caches(model, settings)
    evicting = _evicting(caches)
    pairs = sum(
        _attention_flops(layer, model, settings) * _pairs(layer, evicting, prompt_tokens)
        for layer in model.attention_layers
    )
    written = sum(cache.spec.token_bytes for cache in caches)
    return Work(flops + pairs, read, written * prompt_tokens)


def decode_work(model: ModelSpec, settings: EngineSettings, contexts: Sequence[Tokens]) -> Work:
    """One step that adds a token to each of these sequences."""
    terms = tuple(weight_terms(model, settings))
    batch = len(contexts)
    caches = layer_caches(model, settings)
    evicting = _evicting(caches)
    kv = sum(kv_read_bytes(cache.spec, tokens) for tokens in contexts for cache in caches)
    flops = _linear_flops(terms, batch, positions_with_logits=batch)
    scores = sum(
        _attention_flops(layer, model, settings) * _tokens(layer, evicting, tokens)
        for layer in model.attention_layers
        for tokens in contexts
    )
    return Work(flops + scores, _read_bytes(terms, model, settings, batch), kv)


def kv_read_bytes(spec: CacheSpec, context_tokens: Tokens) -> int:
    """Bytes that one decode step reads of one layer's cache; a recurrent state is written back."""
    if spec.kind == "recurrent":
        return 2 * spec.state_bytes
    if spec.eviction is not None:
        return spec.token_bytes * tokens_read(spec.eviction, spec.block_size, context_tokens)
    return spec.token_bytes * _seen(spec.kind, spec.window, context_tokens)


def _evicting(caches: Sequence[LayerCache]) -> dict[int, CacheSpec]:
    """The caches that evict, by the index of their layer."""
    return {cache.index: cache.spec for cache in caches if cache.spec.eviction is not None}


def _tokens(layer: AttentionLayer, evicting: Mapping[int, CacheSpec], tokens: Tokens) -> Tokens:
    spec = evicting.get(layer.index)
    if spec is None or spec.eviction is None:
        return visible_tokens(layer, tokens)
    return tokens_read(spec.eviction, spec.block_size, tokens)


def _pairs(layer: AttentionLayer, evicting: Mapping[int, CacheSpec], prompt: Tokens) -> int:
    """Pairs of a prefill; where tokens are evicted, those of the cut that has fewest."""
    spec = evicting.get(layer.index)
    if spec is None or spec.eviction is None:
        return visible_pairs(layer, prompt)
    return least_prefill_pairs(spec.eviction, spec.block_size, prompt)


def visible_tokens(layer: AttentionLayer, context_tokens: Tokens) -> Tokens:
    """Tokens that the newest one attends to in this layer."""
    return _seen(layer.kind, layer.window, context_tokens)


def _seen(kind: str, window: Tokens | None, tokens: Tokens) -> Tokens:
    if window is None:
        return tokens
    if kind == "chunked":
        # The newest token sees its own chunk from its beginning.
        return (tokens - 1) % window + 1 if tokens else 0
    return min(tokens, window)


def visible_pairs(layer: AttentionLayer, prompt_tokens: Tokens) -> int:
    """Query-key pairs of a causal prefill: the sum of what each position sees."""
    if layer.window is None or prompt_tokens <= layer.window:
        return prompt_tokens * (prompt_tokens + 1) // 2
    window, beyond = layer.window, prompt_tokens - layer.window
    full = window * (window + 1) // 2
    if layer.kind == "chunked":
        chunks, rest = divmod(prompt_tokens, window)
        return chunks * full + rest * (rest + 1) // 2
    return full + beyond * window


def _attention_flops(layer: AttentionLayer, model: ModelSpec, settings: EngineSettings) -> float:
    """FLOPs of one query-key pair over the heads of one GPU: a dot product and a weighted sum."""
    heads = model.heads / settings.tensor_parallel_size
    value_dim = layer.head_dim if layer.kind == "mla" else layer.head_dim_v
    return 2 * heads * (layer.head_dim + value_dim)


def _linear_flops(terms: Sequence[WeightTerm], tokens: int, *, positions_with_logits: int) -> float:
    layers = sum(t.elements * t.used for t in terms if t.part not in ("head", "norm"))
    head = sum(t.elements for t in terms if t.part == "head")
    return 2 * (layers * tokens + head * positions_with_logits)


def _read_bytes(
    terms: Sequence[WeightTerm], model: ModelSpec, settings: EngineSettings, tokens: int
) -> float:
    return sum(
        term.elements * element_size(term, model, settings) * touched_share(term, tokens)
        for term in terms
    )


def touched_share(term: WeightTerm, tokens: int) -> float:
    """The part of a matrix that a batch is expected to read.

    Experts are taken to be drawn independently and evenly: with a share u used per token,
    1 − (1 − u)ⁿ of them are touched by n tokens.
    """
    if term.part == "experts":
        return 1.0 - (1.0 - term.used) ** tokens
    return term.used


# --- what follows --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadCeilings:
    """The best that a server can do at one concurrency and one request shape.

    Lower bounds on seconds, an upper bound on tokens per second; all hold together.
    """

    ttft_s: Seconds
    tpot_s: Seconds
    output_tokens_per_s: float


def load_ceilings(
    model: ModelSpec,
    settings: EngineSettings,
    ceilings: Ceilings,
    *,
    concurrency: int,
    prompt_tokens: Tokens,
    output_tokens: Tokens,
) -> LoadCeilings:
    """Bounds for ``concurrency`` requests of one shape that are served together.

    A token can't come faster than in a step of one sequence at the prompt's length. All of them
    need at least all their operations and all their bytes: every prompt's prefill, and one step
    per output token that reads the weights and every sequence's KV. Prefill may ride in a decode
    step, so its reads of the weights are not counted a second time.
    """
    prefill = prefill_work(model, settings, prompt_tokens).least_time(ceilings)
    alone = decode_work(model, settings, [_decoded_behind(model, settings, prompt_tokens)])
    together = load_work(
        model,
        settings,
        concurrency=concurrency,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )
    return LoadCeilings(
        prefill,
        alone.least_time(ceilings),
        concurrency * output_tokens / together.least_time(ceilings),
    )


def load_work(
    model: ModelSpec,
    settings: EngineSettings,
    *,
    concurrency: int,
    prompt_tokens: Tokens,
    output_tokens: Tokens,
) -> Work:
    """The least that so many requests take together, prompts and all output tokens."""
    prefill = prefill_work(model, settings, prompt_tokens)
    step = _uniform(model, settings, concurrency, _decoded_behind(model, settings, prompt_tokens))
    return Work(
        flops=concurrency * prefill.flops + (output_tokens - 1) * step.flops,
        weight_bytes=output_tokens * step.weight_bytes,
        kv_bytes=concurrency * prefill.kv_bytes + (output_tokens - 1) * step.kv_bytes,
    )


def _decoded_behind(model: ModelSpec, settings: EngineSettings, prompt_tokens: Tokens) -> Tokens:
    """Tokens that the first decode step sees: the prompt, or what a cut by score left, and itself.

    A window that is wider than the cut is counted short by this, never long: still a bound.
    """
    if settings.snapkv is None:
        return prompt_tokens + 1
    block = layer_caches(model, settings)[0].spec.block_size
    return snapkv_tokens_read(settings.snapkv, block, prompt_tokens, prompt_tokens + 1)


def compute_bound_batch(
    model: ModelSpec, settings: EngineSettings, ceilings: Ceilings, context_tokens: Tokens
) -> int | None:
    """The smallest batch whose decode step is bound by arithmetic; None if no batch is.

    With long contexts each sequence brings its own bytes, so the batch may never get there.
    """

    def bound(batch: int) -> bool:
        return _uniform(model, settings, batch, context_tokens).compute_bound(ceilings)

    if not bound(_LARGEST_BATCH):
        return None
    low, high = 1, _LARGEST_BATCH
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) else (middle + 1, high)
    return low


def _uniform(model: ModelSpec, settings: EngineSettings, batch: int, tokens: Tokens) -> Work:
    """``decode_work`` of equal contexts, in time that doesn't grow with the batch."""
    one = decode_work(model, settings, [tokens])
    terms = tuple(weight_terms(model, settings))
    read = _read_bytes(terms, model, settings, batch)
    return Work(one.flops * batch, read, one.kv_bytes * batch)


def kv_exceeds_weights_at(
    model: ModelSpec, settings: EngineSettings, batch: int = 1
) -> Tokens | None:
    """The context from which a decode step reads more KV than weights; None if it never does."""

    def exceeds(tokens: Tokens) -> bool:
        work = _uniform(model, settings, batch, tokens)
        return work.kv_bytes > work.weight_bytes

    if not exceeds(_LONGEST_CONTEXT):
        return None
    low, high = 1, _LONGEST_CONTEXT
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if exceeds(middle) else (middle + 1, high)
    return low


def model_flops_utilization(flops: float, seconds: Seconds, ceilings: Ceilings) -> float:
    """MFU: operations that had to be done, over time and peak."""
    return flops / seconds / ceilings.flops_per_s


def model_bandwidth_utilization(moved: float, seconds: Seconds, ceilings: Ceilings) -> float:
    """MBU: bytes that had to be moved, over time and peak."""
    return moved / seconds / ceilings.bandwidth_bytes_per_s


def beyond(measured: float, ceiling: float, *, what: str, higher_is_better: bool) -> str | None:
    """A sentence if a measurement beats its ceiling by more than jitter; None if it does not."""
    ratio = measured / ceiling if higher_is_better else ceiling / measured
    if ratio <= 1 + _TOLERANCE:
        return None
    return (
        f"{what} measured {measured:g} is {ratio:.2f}× better than its ceiling {ceiling:g}: "
        "either the measurement or the ceiling is wrong"
    )
