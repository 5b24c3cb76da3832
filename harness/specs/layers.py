"""One layer's cache as the model defines it: whole model, before any parallelism or dtype.

An attention layer keeps one K and one V vector per token and KV head; a latent (MLA) layer keeps
one vector per token; a recurrent layer keeps a fixed state per sequence, whatever its length.
Layers that reuse another layer's cache, or keep none, do not appear at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

AttentionKind = Literal["full", "sliding", "chunked", "mla"]


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """A layer whose cache grows with the tokens it may still see.

    ``index`` is the layer's place in the model (for pipeline stages and per-layer settings).
    ``window`` is the number of tokens a sliding layer attends to, itself included, or the chunk
    of a chunked layer. ``ignores_kv_dtype`` marks layers that the engine keeps in the model's dtype
    whatever ``--kv-cache-dtype`` says.
    """

    index: int
    kind: AttentionKind
    kv_heads: int
    head_dim: int
    head_dim_v: int
    window: int | None = None
    ignores_kv_dtype: bool = False


@dataclass(frozen=True, slots=True)
class ConvState:
    """The last inputs of a causal convolution: ``kernel - 1`` rows of ``width`` channels.

    ``grouped_width`` channels belong to ``groups`` shared groups, which tensor parallelism
    replicates where it can't split them. Each speculative token keeps one row more.
    """

    width: int
    kernel: int
    groups: int = 0
    grouped_width: int = 0
    grows_with_speculation: bool = True


@dataclass(frozen=True, slots=True)
class MatrixState:
    """A running summary: ``heads`` (split by tensor parallelism) × ``elements_per_head``.

    ``dtype`` is what the model asks for; None follows the convolution state.
    """

    heads: int
    elements_per_head: int
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """A layer with a state of fixed size per sequence.

    ``checkpoints`` are the states that its kernel saves in the middle of a prefill, beside the
    running one, while prefix caching aligns states to blocks.
    """

    index: int
    states: tuple[ConvState | MatrixState, ...]
    checkpoints: int = 0


Layer: TypeAlias = AttentionLayer | RecurrentLayer
