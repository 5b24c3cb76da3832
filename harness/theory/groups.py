"""How the engine gathers layers into groups that share block tables and one pool of blocks.

Method: layers with equal caches are one group. If all need the same number of tokens they are one
group even with unlike pages. Otherwise all pages are made equal (larger blocks, or padding), the
layers are bucketed by cache, and the buckets are cut into groups of about equal layer count;
every group draws whole blocks from one pool, so a block is as wide as the widest group.

Not covered: layouts with all layers of a block side by side (sparse indexers, compressed caches).
Source: vLLM 0.32.0, ``v1/core/kv_cache_utils.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.errors import UnsupportedModel
from harness.theory.kv import CacheSpec, LayerCache, ceil_div
from harness.units import Bytes

#: Buckets nearer in size than this are padded to the larger one instead of cut to the smaller.
_NEAR_BUCKETS = 1.5


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share one block table."""

    layers: tuple[LayerCache, ...]

    @property
    def spec(self) -> CacheSpec:
        """The cache of its first layer; the others have the same block size and kind of need."""
        return self.layers[0].spec

    @property
    def block_bytes(self) -> Bytes:
        """Bytes that one block of this group occupies in all of its layers."""
        return sum(layer.spec.page_bytes for layer in self.layers)


def cache_groups(caches: Sequence[LayerCache]) -> tuple[CacheGroup, ...]:
    """Gather the layers of the whole model, all pipeline stages together.

    Raises:
        UnsupportedModel: unlike pages that the engine's pool can't unify.
    """
    specs = {cache.spec for cache in caches}
    if len(specs) == 1 or _same_need(caches):
        return (CacheGroup(tuple(caches)),)
    return _cut(_buckets(_unify_pages(caches)))


def _same_need(caches: Sequence[LayerCache]) -> bool:
    """Whether one block table serves all layers, whatever their pages."""
    specs = [cache.spec for cache in caches]
    if len({spec.block_size for spec in specs}) > 1:
        return False
    families = {_family(spec) for spec in specs}
    return len(families) == 1


def _family(spec: CacheSpec) -> tuple[object, ...]:
    if spec.kind in ("full", "mla"):
        return ("full",)
    if spec.kind == "recurrent":
        return ("recurrent", spec.page_bytes)
    return (spec.kind, spec.window, spec.eviction)


def _unify_pages(caches: Sequence[LayerCache]) -> tuple[LayerCache, ...]:
    """Widen every page to the widest: by whole multiples of the block, else by padding."""
    widest = max(cache.spec.page_bytes for cache in caches)
    return tuple(replace(cache, spec=_widen(cache.spec, widest)) for cache in caches)


def _widen(spec: CacheSpec, widest: Bytes) -> CacheSpec:
    if spec.page_bytes == widest:
        return spec
    if spec.kind == "recurrent":
        return replace(spec, page_padded=widest)
    if widest % spec.page_bytes == 0:
        return replace(spec, block_size=spec.block_size * (widest // spec.page_bytes))
    if spec.kind == "mla":
        raise UnsupportedModel("a latent page that does not divide the widest page")
    return replace(spec, page_padded=widest)


def _buckets(caches: Sequence[LayerCache]) -> tuple[tuple[LayerCache, ...], ...]:
    found: dict[CacheSpec, list[LayerCache]] = {}
    for cache in caches:
        found.setdefault(cache.spec, []).append(cache)
    return tuple(tuple(bucket) for bucket in found.values())


def _cut(buckets: Sequence[tuple[LayerCache, ...]]) -> tuple[CacheGroup, ...]:
    """Cut buckets to the size of the smallest, or pad all to the largest if they are near."""
    sizes = [len(bucket) for bucket in buckets]
    near = max(sizes) < min(sizes) * _NEAR_BUCKETS
    size = max(sizes) if near else min(sizes)
    groups: list[CacheGroup] = []
    for bucket in buckets:
        count = ceil_div(len(bucket), size)
        # Every n-th layer goes together, so that pipeline stages get even shares of each group.
        groups.extend(CacheGroup(bucket[i::count]) for i in range(count))
    return tuple(groups)


def bytes_per_block(groups: Sequence[CacheGroup]) -> Bytes:
    """Bytes of one block of the shared pool: the widest group's."""
    return max(group.block_bytes for group in groups)


def stage_of(index: int, layer_count: int, stages: int) -> int:
    """The pipeline stage of a layer: even shares, the remainder before the last stage.

    Draft layers (``index`` beyond the last layer) belong to the last stage.
    """
    shares = [layer_count // stages] * stages
    for i in range(2, layer_count % stages + 2):
        shares[-i] += 1
    end = 0
    for stage, share in enumerate(shares):
        end += share
        if index < end:
            return stage
    return stages - 1


def on_stage(
    groups: Sequence[CacheGroup], stage: int, layer_count: int, stages: int
) -> tuple[CacheGroup, ...]:
    """What of each group one pipeline stage keeps; groups without a layer there drop out."""
    kept = (
        tuple(c for c in group.layers if stage_of(c.index, layer_count, stages) == stage)
        for group in groups
    )
    return tuple(CacheGroup(layers) for layers in kept if layers)
