"""Runs inside a process with vLLM and prints one line of JSON; ``test_parts.py`` judges it.

The replay lets a real block pool and our manager schedule random chunks of random requests, as the
engine's scheduler does, hands each step's table to our builder, and compares what the kernel would
be shown with the tokens that the rule keeps. CUDA builders run on CPU tensors: everything of them
but the kernels' own scheduling, which needs the device.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from typing import Any

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends import cpu_attn, flash_attn, triton_attn
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from harness.engines.eviction import plugin
from harness.engines.eviction.builder import CompactingBuilder
from harness.engines.eviction.refusals import EvictionRefused
from harness.engines.eviction.spec import SinkWindowSpec, active_rule, evicting_spec
from harness.engines.eviction.wiring import WIRED
from tests.engines.eviction import engine_stub

STOCK = {
    "CPU_ATTN": (cpu_attn.CPUAttentionBackend, cpu_attn.CPUAttentionMetadataBuilder),
    "FLASH_ATTN": (flash_attn.FlashAttentionBackend, flash_attn.FlashAttentionMetadataBuilder),
    "TRITON_ATTN": (triton_attn.TritonAttentionBackend, triton_attn.TritonAttentionMetadataBuilder),
}
IN_FLIGHT, LONGEST, BLOCK = 256, 4096, 32


def full(block: int = BLOCK, **more: Any) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=block, num_kv_heads=3, head_size=64, dtype=torch.bfloat16, **more
    )


def ours(block: int = BLOCK) -> SinkWindowSpec:
    made = evicting_spec(full(block), active_rule())
    assert isinstance(made, SinkWindowSpec)
    return made


def window(width: int) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        block_size=BLOCK, num_kv_heads=3, head_size=64, dtype=torch.bfloat16, sliding_window=width
    )


def refusal(call: Any) -> str:
    try:
        call()
    except EvictionRefused as error:
        return str(error)
    return ""


def manager(spec: SinkWindowSpec, pool: BlockPool) -> Any:
    return engine_stub.manager(spec, pool, in_flight=IN_FLIGHT, longest=LONGEST)


def config() -> Any:
    return engine_stub.config(
        torch.bfloat16, heads=9, kv_heads=3, head_size=64, in_flight=IN_FLIGHT
    )


def builder(name: str, spec: Any) -> Any:
    made = AttentionBackendEnum[name].get_class().get_builder_cls()
    assert issubclass(made, CompactingBuilder)
    width = LONGEST // spec.block_size
    return made(spec, ["layer.0"], config(), torch.device("cpu"), block_table_width=width)


class Replay:
    """Requests that arrive, are computed in random chunks, and leave."""

    def __init__(self, name: str, unit: int, kernel: int) -> None:
        self.random = random.Random(f"{name} {unit} {kernel}")  # noqa: S311
        self.unit, self.kernel = unit, kernel
        spec = ours(unit)
        self.pool = BlockPool(num_gpu_blocks=600, enable_caching=False, hash_block_size=unit)
        self.free_at_start = self.pool.get_num_free_blocks()
        self.manager = manager(spec, self.pool)
        self.builder = builder(name, spec.copy_with_new_block_size(kernel))
        self.sinks = spec.sink_blocks * unit
        self.computed: dict[str, int] = {}
        self.goal: dict[str, int] = {}
        self.counts = {
            "rows": 0,
            "evicting_rows": 0,
            "mismatches": 0,
            "freed_reads": 0,
            "over_the_cap": 0,
        }
        self.addresses: set[int] = set()
        self.arrived = 0

    def step(self) -> None:
        while len(self.computed) < 6:
            self.arrived += 1
            self.computed[f"r{self.arrived}"] = 0
            self.goal[f"r{self.arrived}"] = self.random.randrange(1, 1500)
        batch = {name: self.chunk(name) for name in self.computed}
        for name, new in batch.items():
            done = self.computed[name]
            # A scheduler that runs ahead frees by what is settled, which lags behind.
            settled = max(0, done - self.random.choice((0, 0, 1, 64)))
            self.manager.remove_skipped_blocks(name, settled)
            self.manager.allocate_new_blocks(name, done + new, done + new)
        self.check(batch)
        for name, new in batch.items():
            self.computed[name] += new
            # Ends early now and then, as an abort or a preemption does.
            if self.computed[name] >= self.goal[name] or self.random.random() < 0.01:
                self.manager.free(name)
                del self.computed[name]

    def chunk(self, name: str) -> int:
        left = self.goal[name] - self.computed[name]
        return min(left, self.random.choice((1, 1, 1, 7, 33, 64)))

    def check(self, batch: dict[str, int]) -> None:
        ratio = self.unit // self.kernel
        width = LONGEST // self.kernel
        table = torch.zeros(len(batch) + 1, width, dtype=torch.int32)
        for row, name in enumerate(batch):
            blocks = torch.tensor([b.block_id for b in self.manager.req_to_blocks[name]])
            fine = (blocks[:, None] * ratio + torch.arange(ratio)).flatten()
            table[row, : len(fine)] = fine.to(torch.int32)
        shown = self.built(batch, table)
        self.addresses.add(shown.block_table.data_ptr())
        for row, (name, new) in enumerate(batch.items()):
            self.compare(row, name, new, table, shown)

    def built(self, batch: dict[str, int], table: torch.Tensor) -> Any:
        news = [*batch.values(), 0]  # the last row is padding
        lens = [self.computed[name] + new for name, new in batch.items()] + [0]
        starts = torch.tensor([0, *news]).cumsum(0).to(torch.int32)
        common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor(lens, dtype=torch.int32),
            num_reqs=len(news),
            num_actual_tokens=sum(news),
            max_query_len=max(news),
            max_seq_len=max(lens),
            block_table_tensor=table,
            slot_mapping=torch.zeros(sum(news), dtype=torch.int64),
        )
        return self.builder.build(0, common)

    def compare(self, row: int, name: str, new: int, table: torch.Tensor, shown: Any) -> None:
        done = self.computed[name]
        position = torch.arange(done + new)
        block_end = (position // self.unit + 1) * self.unit
        kept = position[(position < self.sinks) | (block_end > done - active_rule().window + 1)]
        expected = self.slots(table[row], kept)
        seen = self.slots(shown.block_table[row], torch.arange(int(shown.seq_lens[row])))
        ratio = self.unit // self.kernel
        held = {b.block_id for b in self.manager.req_to_blocks[name] if not b.is_null}
        read = {int(slot) // self.kernel // ratio for slot in seen}
        self.counts["rows"] += 1
        self.counts["evicting_rows"] += len(kept) < done + new
        self.counts["mismatches"] += seen != expected
        self.counts["freed_reads"] += not read <= held
        self.counts["over_the_cap"] += len(held) > self.manager.max_admission_blocks_per_request

    def slots(self, blocks: torch.Tensor, positions: torch.Tensor) -> list[int]:
        return (blocks[positions // self.kernel] * self.kernel + positions % self.kernel).tolist()

    def run(self, steps: int) -> dict[str, Any]:
        for _ in range(steps):
            self.step()
        for name in list(self.computed):
            self.manager.free(name)
        left = self.free_at_start - self.pool.get_num_free_blocks()
        moved = len(self.addresses) > 1
        return {**self.counts, "blocks_left": left, "buffers_moved": moved}


def replay(name: str) -> dict[str, Any]:
    """Allocator blocks of 32 and of 128 that the kernel splits into 32."""
    first, second = Replay(name, 32, 32).run(350), Replay(name, 128, 32).run(350)
    return {key: first[key] + second[key] for key in first} | {
        "buffers_moved": first["buffers_moved"] or second["buffers_moved"]
    }


def same_as_stock(name: str) -> bool:
    mine, stock = AttentionBackendEnum[name].get_class(), STOCK[name][0]
    builders = mine.get_builder_cls(), STOCK[name][1]
    return (
        mine is not stock
        and mine.get_impl_cls() is stock.get_impl_cls()
        and mine.get_supported_kernel_block_sizes() == stock.get_supported_kernel_block_sizes()
        and builders[0]._cudagraph_support is builders[1]._cudagraph_support
        and builders[0].supports_update_block_table is False
    )


def backends() -> dict[str, Any]:
    refusing = [
        backend.name
        for backend in AttentionBackendEnum
        if backend.is_overridden() and refusal(backend.get_class)
    ]
    return {
        "wired": sorted(WIRED),
        "names": [AttentionBackendEnum[name].get_class().get_name() for name in sorted(WIRED)],
        "refusing": refusing,
        "left_alone": sorted(b.name for b in AttentionBackendEnum if not b.is_overridden()),
        "same_as_stock": {name: same_as_stock(name) for name in sorted(WIRED)},
    }


def specs() -> dict[str, Any]:
    rule, spec = active_rule(), ours()
    kinds = {
        "full": full(),
        "window": window(100),
        "full, promoted window": full(sliding_window=64),
    }
    return {
        "specs": {name: type(evicting_spec(given, rule)).__name__ for name, given in kinds.items()},
        "caps": {
            length: spec.max_admission_blocks_per_request(IN_FLIGHT, length)
            for length in (4096, 96)
        },
        "prefix_cacheable": spec.prefix_cacheable,
        "uniform": {
            "alike": spec.is_uniform_with_collection({"a": spec, "b": ours()}),
            "with a plain window": spec.is_uniform_with_collection({"a": spec, "b": window(100)}),
        },
        "managers": {
            type(each).__name__: KVCacheSpecRegistry.get_manager_class(each).__name__
            for each in (spec, full(), window(100))
        },
    }


def main() -> None:
    plugin.register()
    plugin.register()  # the engine loads plugins in more than one place
    pool = BlockPool(num_gpu_blocks=10, enable_caching=False, hash_block_size=32)
    told = {
        **backends(),
        **specs(),
        "replay": {name: replay(name) for name in sorted(WIRED)},
        "missed_layer": refusal(lambda: builder("CPU_ATTN", full())),
        "changed_block": refusal(lambda: manager(replace(ours(), block_size=64), pool)),
    }
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
