"""What eviction refuses to run with, by name; no vLLM is imported.

Every entry is something whose blocks, positions or masks were not tested with a middle that is
gone. A refusal ends the server's start: a silent fall-back would pass for a measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

#: Engine versions on which the checks of ``docs/eviction.md`` were made.
TESTED_VERSIONS = ("0.32.0",)


class EvictionRefused(ImportError):
    """Eviction was asked for where it can't be granted.

    An ``ImportError``, because that is how the engine's backend selection passes over a backend.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"KVBENCH_EVICTION refused: {what}")


def check_version(version: str) -> None:
    """Refuse an engine version that was not tested; local parts such as ``+cpu`` don't count.

    Raises:
        EvictionRefused: naming the version and those that were tested.
    """
    if version.split("+")[0] not in TESTED_VERSIONS:
        tested = ", ".join(TESTED_VERSIONS)
        raise EvictionRefused(f"vLLM {version} was not tested (tested: {tested})")


def check_config(config: Any, layers: Iterable[Any], window: int) -> None:
    """Refuse settings and models that were not tested.

    Args:
        config: vLLM's ``VllmConfig``.
        layers: the model's attention layers, as vLLM keeps them.
        window: tokens of the recent window.

    Raises:
        EvictionRefused: naming everything that stands against it.
    """
    reasons = [*_settings(config), *_model(config.model_config), *_layers(layers, window)]
    if reasons:
        raise EvictionRefused("not tested with " + "; ".join(reasons))


def check_snapkv(config: Any, layers: Iterable[Any]) -> None:
    """The same for the rule by score, which needs whole prompts and layers of plain attention.

    Raises:
        EvictionRefused: naming everything that stands against it.
    """
    reasons = [
        *_settings(config),
        *_cut_prompts(config),
        *_model(config.model_config),
        *_scored_layers(layers),
    ]
    if reasons:
        raise EvictionRefused("SnapKV was not tested with " + "; ".join(reasons))


def _cut_prompts(config: Any) -> Iterator[str]:
    """What may cut a prompt into steps: each would be scored by queries that lack the rest."""
    if config.scheduler_config.enable_chunked_prefill:
        yield (
            "chunked prefill (a prompt is scored in one step: set enable_chunked_prefill to false "
            "and max_num_batched_tokens to at least max_model_len)"
        )
    if config.scheduler_config.long_prefill_token_threshold > 0:
        yield "long_prefill_token_threshold (it cuts prompts into steps)"
    if config.model_config.is_multimodal_model:
        yield "multimodal models (the encoder's budget may cut prompts into steps)"


def _scored_layers(layers: Iterable[Any]) -> Iterator[str]:
    layers = list(layers)
    if any(layer.sliding_window is not None for layer in layers):
        yield "layers with a window of their own"
    if any(layer.kv_sharing_target_layer_name is not None for layer in layers):
        yield "layers that share another layer's cache"
    if any(getattr(layer.impl, "alibi_slopes", None) is not None for layer in layers):
        yield "ALiBi"
    if any(getattr(layer.impl, "logits_soft_cap", None) for layer in layers):
        yield "a soft cap on attention logits"
    if any(getattr(layer.impl, "sinks", None) is not None for layer in layers):
        yield "learned attention sinks"


def _settings(config: Any) -> Iterator[str]:
    parallel = config.parallel_config
    if config.kv_transfer_config is not None:
        yield "KV connectors and offloading (they take the group for a plain sliding window)"
    if config.speculative_config is not None:
        yield "speculative decoding"
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        yield "context parallelism"
    if parallel.enable_dbo or parallel.ubatch_size > 0:
        yield "dual-batch overlap (a request may be cut in two)"
    if config.cache_config.kv_sharing_fast_prefill:
        yield "kv_sharing_fast_prefill"


def _model(model: Any) -> Iterator[str]:
    if model.use_mla:
        yield "MLA (latent caches)"
    if model.is_hybrid:
        yield "recurrent layers"
    if model.is_encoder_decoder:
        yield "encoder-decoder models"
    if model.is_mm_prefix_lm:
        yield "bidirectional prefixes"
    if model.rswa_window is not None:
        yield "reference sliding windows"


def _layers(layers: Iterable[Any], window: int) -> Iterator[str]:
    layers = list(layers)
    if any(getattr(layer.impl, "alibi_slopes", None) is not None for layer in layers):
        yield "ALiBi (the bias would be taken from the shortened sequence)"
    if any(layer.sliding_window == window for layer in layers):
        yield (
            f"layers that have a window of {window} tokens of their own (the engine would share "
            "their blocks with the evicting layers; choose another window)"
        )
    if layers and all(layer.sliding_window is not None for layer in layers):
        yield "a model none of whose layers sees the whole context: there is nothing to evict"


def check_block_size(planned: int, granted: int) -> None:
    """Scheduler and worker count what goes in the same blocks, sizes in tokens.

    Raises:
        EvictionRefused: the engine granted blocks of another size than the layers asked for.
    """
    if planned != granted:
        raise EvictionRefused(
            f"the engine changed the block size from {planned} to {granted} tokens "
            "(layers of unlike pages)"
        )
