from __future__ import annotations

import pytest

from harness.errors import UnsupportedModel
from harness.theory.groups import bytes_per_block, cache_groups, on_stage, stage_of
from harness.theory.kv import CacheKind, CacheSpec, LayerCache


def layers(*runs: tuple[CacheKind, int, int]) -> list[LayerCache]:
    """Runs of (kind, number of layers, bytes per token), with blocks of 16."""
    found: list[LayerCache] = []
    for kind, count, token_bytes in runs:
        window = 64 if kind in ("sliding", "chunked") else None
        spec = CacheSpec(kind, 16, token_bytes, (token_bytes,), window=window)
        found += [LayerCache(len(found) + i, spec) for i in range(count)]
    return found


def shape(caches: list[LayerCache]) -> list[tuple[str, int, int, int]]:
    return [
        (g.spec.kind, len(g.layers), g.spec.block_size, g.spec.page_bytes)
        for g in cache_groups(caches)
    ]


def test_equal_layers_are_one_group() -> None:
    assert shape(layers(("full", 8, 64))) == [("full", 8, 16, 1024)]


def test_unlike_pages_share_a_group_where_all_need_the_same_tokens() -> None:
    groups = cache_groups(layers(("full", 2, 64), ("full", 1, 256)))
    assert len(groups) == 1
    # 2 × 1,024 + 4,096
    assert bytes_per_block(groups) == 6144


def test_buckets_are_cut_to_the_size_of_the_smallest() -> None:
    # 25 : 5 as five groups of five and one of five.
    assert shape(layers(("sliding", 25, 64), ("full", 5, 64))) == [
        *[("sliding", 5, 16, 1024)] * 5,
        ("full", 5, 16, 1024),
    ]


def test_a_remainder_spreads_over_groups_of_about_equal_size() -> None:
    # 22 : 4 needs six groups; every sixth layer goes together: 4, 4, 4, 4, 3, 3.
    sizes = [size for kind, size, *_ in shape(layers(("sliding", 22, 64), ("full", 4, 64)))]
    assert sizes == [4, 4, 4, 4, 3, 3, 4]


def test_a_group_takes_every_nth_layer() -> None:
    groups = cache_groups(layers(("sliding", 4, 64), ("full", 2, 64)))
    assert [[c.index for c in g.layers] for g in groups] == [[0, 2], [1, 3], [4, 5]]


def test_buckets_of_about_equal_size_are_padded_to_the_larger() -> None:
    # 13 < 1.5 × 12: two groups, and a block as wide as 13 layers.
    groups = cache_groups(layers(("sliding", 13, 64), ("full", 12, 64)))
    assert [len(g.layers) for g in groups] == [13, 12]
    assert bytes_per_block(groups) == 13 * 1024


def test_a_smaller_page_gets_a_larger_block_where_it_divides() -> None:
    assert shape(layers(("sliding", 2, 128), ("full", 2, 64))) == [
        ("sliding", 2, 16, 2048),
        ("full", 2, 32, 2048),
    ]


def test_a_page_that_does_not_divide_is_padded() -> None:
    assert shape(layers(("sliding", 2, 96), ("full", 2, 64))) == [
        ("sliding", 2, 16, 1536),
        ("full", 2, 16, 1536),
    ]


def test_a_latent_page_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="latent"):
        cache_groups(layers(("sliding", 2, 96), ("mla", 2, 64)))


def test_different_windows_are_different_groups() -> None:
    caches = layers(("sliding", 2, 64))
    wide = CacheSpec("sliding", 16, 64, (64,), window=128)
    found = cache_groups([*caches, LayerCache(2, wide), LayerCache(3, wide)])
    assert [g.spec.window for g in found] == [64, 128]


@pytest.mark.parametrize(
    ("layer_count", "stages", "expected"),
    [
        (8, 2, [4, 4]),
        # 32 over 3: one more for each stage but the last.
        (32, 3, [11, 11, 10]),
        (5, 2, [3, 2]),
        (10, 4, [2, 3, 3, 2]),
    ],
)
def test_the_remainder_of_layers_goes_before_the_last_stage(
    layer_count: int, stages: int, expected: list[int]
) -> None:
    counts = [0] * stages
    for index in range(layer_count):
        counts[stage_of(index, layer_count, stages)] += 1
    assert counts == expected


def test_draft_layers_stand_on_the_last_stage() -> None:
    assert stage_of(8, 8, 4) == 3


def test_a_stage_keeps_its_share_of_every_group() -> None:
    groups = cache_groups(layers(("sliding", 4, 64), ("full", 2, 64)))
    first = on_stage(groups, 0, 6, 2)
    # Layers 0, 1, 2: two of the first group and one of the second; the third has none here.
    assert [[c.index for c in g.layers] for g in first] == [[0, 2], [1]]
    assert bytes_per_block(first) == 2048
