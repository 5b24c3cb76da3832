"""The worker's side, as arithmetic on tensors: present only the kept blocks to the kernel.

Method: a kernel walks a request's blocks in order and aligns the causal mask to the end of the
sequence. Everything that is kept from before a step lies in the past of that step's tokens, so a
table without the evicted blocks and a length without their tokens give exact attention over what
is kept; no new mask is needed. Keys keep their original positions (they were rotated when they
were written). Writes go by the original table, so only reads change.

The boundary follows from lengths alone, by the same rule as the scheduler's: the worker is never
told which blocks were freed. Not covered: several draft tokens per step, context parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Geometry:
    """What is kept, in tokens: ``block`` is the kernel's block, ``unit`` the allocator's.

    ``sink_tokens`` is a multiple of ``unit``, and ``unit`` one of ``block``.
    """

    sink_tokens: int
    window: int
    unit: int
    block: int

    def most_tokens(self, query_tokens: int) -> int:
        """An upper bound of a shortened sequence when a step adds ``query_tokens``."""
        return self.sink_tokens + self.window + self.unit + query_tokens

    def most_columns(self, query_tokens: int) -> int:
        """Columns of a shortened table that hold as many tokens."""
        return -(-self.most_tokens(query_tokens) // self.block)


def dropped_tokens(computed: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Tokens evicted from each request before a step, in whole allocator blocks.

    Args:
        computed: (requests,) tokens that were computed before the step.
        geometry: what is kept.
    """
    unit = geometry.unit
    first_kept = (computed - geometry.window + 1).div(unit, rounding_mode="floor") * unit
    return (first_kept - geometry.sink_tokens).clamp_(min=0)


def compact(
    table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    geometry: Geometry,
    columns: torch.Tensor,
    out_table: torch.Tensor,
    out_lens: torch.Tensor,
) -> None:
    """Write the shortened block table and lengths of a batch into the given buffers.

    Only device operations without a wait on the host, as full CUDA graphs ask for. Columns behind
    a request's last block hold its table's last column: kernels don't read them.

    Args:
        table: (requests, width) kernel blocks of each request, evicted ones among them.
        seq_lens: (requests,) tokens of each request after this step; 0 for padding rows.
        query_start_loc: (requests + 1,) where each request's new tokens begin.
        geometry: what is kept.
        columns: (out width,) 0, 1, 2, … as int64 on the table's device.
        out_table: (requests, out width), written.
        out_lens: (requests,), written.
    """
    computed = seq_lens - (query_start_loc[1:] - query_start_loc[:-1])
    dropped = dropped_tokens(computed, geometry)
    gone, kept = dropped // geometry.block, geometry.sink_tokens // geometry.block
    out_table.copy_(table.gather(1, shown_columns(gone, kept, columns, table.shape[1])))
    out_lens.copy_(seq_lens - dropped)


def shown_columns(gone: torch.Tensor, kept: int, columns: torch.Tensor, width: int) -> torch.Tensor:
    """Columns of a table of ``width`` that a shortened one shows: those that went are jumped over.

    Args:
        gone: (requests,) kernel blocks that went behind the first ``kept`` ones.
        kept: kernel blocks at the beginning that stay.
        columns: (out width,) 0, 1, 2, … as int64.
        width: columns of the original table; what would lie beyond is its last one.

    Returns:
        (requests, out width) columns of the original table.
    """
    shift = gone.unsqueeze(1) * (columns >= kept)
    return (columns + shift).clamp_(max=width - 1)
