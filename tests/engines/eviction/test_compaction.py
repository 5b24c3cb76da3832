"""The shortened batch, held against a brute-force reading of the rule over thousands of rows."""

from __future__ import annotations

import random

import pytest
import torch

from harness.engines.eviction.compaction import Geometry, compact, dropped_tokens

#: (sinks, window, allocator's block, kernel's block), sinks already whole blocks.
GEOMETRIES = [
    Geometry(32, 512, 32, 32),
    Geometry(0, 512, 32, 32),
    Geometry(128, 512, 128, 32),
    Geometry(64, 1, 16, 16),
    Geometry(16, 100, 16, 16),
    Geometry(256, 300, 128, 128),
    Geometry(32, 4000, 32, 32),
]


def kept_positions(computed: int, new: int, geometry: Geometry) -> torch.Tensor:
    """The rule, token by token: a block goes once all of it lies before the window.

    The next token's window begins ``window - 1`` tokens before it.
    """
    position = torch.arange(computed + new)
    block_end = (position // geometry.unit + 1) * geometry.unit
    in_window = block_end > computed - geometry.window + 1
    return position[(position < geometry.sink_tokens) | in_window]


def slots(blocks: torch.Tensor, positions: torch.Tensor, block: int) -> list[int]:
    """Where in the cache a row of blocks puts the tokens at these positions."""
    return (blocks[positions // block] * block + positions % block).tolist()


def shortened(
    rows: list[tuple[int, int]], width: int, geometry: Geometry, generator: random.Random
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A random table for (computed, new) rows; the table, its short form and short lengths."""
    ids = generator.sample(range(1, 10 * width * len(rows)), width * len(rows))
    table = torch.tensor(ids, dtype=torch.int32).view(len(rows), width)
    starts = torch.tensor([0, *(new for _, new in rows)], dtype=torch.int32)
    columns = min(width, geometry.most_columns(max(new for _, new in rows)))
    out = torch.full((len(rows), columns), -7, dtype=torch.int32)
    lens = torch.full((len(rows),), -7, dtype=torch.int32)
    compact(
        table,
        torch.tensor([computed + new for computed, new in rows], dtype=torch.int32),
        starts.cumsum(0).to(torch.int32),
        geometry,
        torch.arange(columns),
        out,
        lens,
    )
    return table, out, lens


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_the_kernel_sees_exactly_the_kept_tokens_in_order(geometry: Geometry) -> None:
    generator = random.Random(str(geometry))  # noqa: S311
    longest = 2048
    width = longest // geometry.block
    for _ in range(60):
        rows = [(0, 0)] * 3  # rows of padding
        rows += [(generator.randrange(longest - 1), 1) for _ in range(8)]
        for _ in range(8):
            computed = generator.randrange(longest - 1)
            rows.append((computed, generator.randrange(1, min(300, longest - computed) + 1)))
        generator.shuffle(rows)
        table, out, lens = shortened(rows, width, geometry, generator)
        for row, (computed, new) in enumerate(rows):
            kept = kept_positions(computed, new, geometry)
            expected = slots(table[row], kept, geometry.block)
            seen = slots(out[row], torch.arange(int(lens[row])), geometry.block)
            assert seen == expected


def test_a_boundary_worked_by_hand() -> None:
    """W = 512, blocks of 32, one sink block, 3,000 tokens computed.

    The next token's window begins at 3,000 − 512 + 1 = 2,489, in block 77 (77 × 32 = 2,464).
    Blocks 1 to 76 are gone: 76 × 32 = 2,432 tokens. Of 3,001 tokens 569 are presented.
    """
    geometry = Geometry(32, 512, 32, 32)
    assert dropped_tokens(torch.tensor([3000]), geometry).tolist() == [2432]
    generator = random.Random(1)  # noqa: S311
    _, _, lens = shortened([(3000, 1)], 96, geometry, generator)
    assert lens.tolist() == [569]


def test_nothing_is_dropped_within_the_budget() -> None:
    """544 = 32 + 512: the first block behind the sinks goes only when 575 tokens are computed.

    That block ends at 64, and 575 − 512 + 1 = 64.
    """
    geometry = Geometry(32, 512, 32, 32)
    computed = torch.arange(577)
    dropped = dropped_tokens(computed, geometry)
    assert dropped[:575].tolist() == [0] * 575
    assert dropped[575:].tolist() == [32, 32]


def test_inputs_stay_as_they_were() -> None:
    geometry = Geometry(32, 64, 32, 32)
    table = torch.arange(64, dtype=torch.int32).view(2, 32)
    lens = torch.tensor([900, 40], dtype=torch.int32)
    starts = torch.tensor([0, 1, 41], dtype=torch.int32)
    before = (table.clone(), lens.clone(), starts.clone())
    width = geometry.most_columns(40)
    compact(
        table,
        lens,
        starts,
        geometry,
        torch.arange(width),
        torch.empty(2, width, dtype=torch.int32),
        torch.empty(2, dtype=torch.int32),
    )
    assert all(torch.equal(a, b) for a, b in zip(before, (table, lens, starts), strict=True))


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_a_shortened_sequence_never_outgrows_the_buffers(geometry: Geometry) -> None:
    computed = torch.arange(20_000)
    for new in (1, 17, 256):
        presented = computed + new - dropped_tokens(computed, geometry)
        assert int(presented.max()) <= geometry.most_tokens(new)
        assert geometry.most_columns(new) * geometry.block >= int(presented.max())
