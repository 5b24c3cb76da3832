"""Runs inside a process with vLLM and prints one line of JSON; ``test_snapkv_parts.py`` judges it.

The replay lets a real block pool and our manager schedule random requests, as the engine does
under this rule (whole prompts, then token by token, some thrown out and begun anew), and puts each
step through our builder and our attention: the stock kernel on a real cache. Blocks that are freed
are filled with NaN at once. What stays of a prompt is read back from the cache and held against
scores that are computed here in fp64, key by key; what each step answers is held against attention
over exactly these keys.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends import cpu_attn
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from harness.engines.eviction import plugin
from harness.engines.eviction.refusals import EvictionRefused
from harness.engines.eviction.snapkv.spec import ScoredSpec, scored_spec
from harness.engines.eviction.spec import active_rule, active_snapkv
from harness.engines.eviction.wiring import WIRED_SNAPKV
from tests.engines.eviction import engine_stub

HEADS, KV_HEADS, DIM, KERNEL = 4, 2, 32, 32
LONGEST, ROWS = 1024, 4
COUNTED = (
    "rows",
    "cut_prompts",
    "cut_rows",
    "preempted",
    "freed_reads",
    "wrong_answers",
    "unknown_keys",
    "not_distinct",
    "observers_lost",
    "better_ones_gone",
    "inputs_changed",
)
LAYER = SimpleNamespace(isa="vec", _k_scale_float=1.0, _v_scale_float=1.0)


def full(block: int, **more: Any) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=block, num_kv_heads=KV_HEADS, head_size=DIM, dtype=torch.float32, **more
    )


def ours(block: int) -> ScoredSpec:
    return scored_spec(full(block), active_snapkv())


def manager(spec: Any, pool: BlockPool) -> Any:
    return engine_stub.manager(spec, pool, in_flight=LONGEST, longest=LONGEST)


def config() -> Any:
    return engine_stub.config(
        torch.float32, heads=HEADS, kv_heads=KV_HEADS, head_size=DIM, in_flight=LONGEST
    )


def backend() -> Any:
    return AttentionBackendEnum["CPU_ATTN"].get_class()


def builder(spec: Any, **changes: Any) -> Any:
    asked = config()
    for name, value in changes.items():
        setattr(asked.scheduler_config, name, value)
    return backend().get_builder_cls()(spec, ["layer.0"], asked, torch.device("cpu"))


def attention() -> Any:
    with set_current_vllm_config(config()):
        return backend().get_impl_cls()(HEADS, DIM, DIM**-0.5, KV_HEADS, None, None, "auto")


@dataclass
class Request:
    """A request's tokens and, once its first step is computed, what stays of that per KV head."""

    keys: torch.Tensor
    values: torch.Tensor
    computed: int = 0
    first_step: int = 0
    kept: list[list[int]] = field(default_factory=list)


def attended(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """(queries, keys) weights of one head; the last query is the last key's, each sees the past."""
    ahead = torch.arange(len(keys)) > torch.arange(len(keys) - len(query), len(keys))[:, None]
    logits = query @ keys.T / math.sqrt(DIM)
    return logits.masked_fill(ahead, -math.inf).softmax(-1)


def fp64_scores(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """(KV heads, tokens before the observing ones): the rule, head by head."""
    before, shared = len(keys) - len(queries), HEADS // KV_HEADS
    found = torch.zeros(KV_HEADS, before, dtype=torch.float64)
    for head in range(HEADS):
        weights = attended(queries[:, head].double(), keys[:, head // shared].double())
        drawn = [0.0, 0.0, *weights[:, :before].mean(0).tolist(), 0.0, 0.0]
        near = [sum(drawn[place : place + 5]) / 5 for place in range(before)]
        found[head // shared] += torch.tensor(near, dtype=torch.float64) / shared
    return found


class Replay:
    """Requests that arrive whole, are decoded token by token, are thrown out at times, leave."""

    def __init__(self, unit: int) -> None:
        self.random = random.Random(f"snapkv {unit}")  # noqa: S311
        torch.manual_seed(unit)
        self.unit, self.ratio, spec = unit, unit // KERNEL, ours(unit)
        self.pool = BlockPool(num_gpu_blocks=160, enable_caching=False, hash_block_size=unit)
        self.free_at_start = self.pool.get_num_free_blocks()
        self.manager, self.cut = manager(spec, self.pool), spec.cut
        self.builder = builder(spec.copy_with_new_block_size(KERNEL))
        self.impl = attention()
        self.cache = torch.zeros(160 * self.ratio, KV_HEADS, KERNEL, 2 * DIM)
        self.live: dict[str, Request] = {}
        self.arrived = 0
        #: Blocks that each request was ever given: the worker is not told which were freed.
        self.given: dict[str, list[int]] = {}
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))

    def step(self) -> None:
        while len(self.live) < ROWS:
            self.arrived += 1
            length = self.random.choice((5, 100, 150, 200, 260, 400)) + self.random.randrange(60)
            keys, values = torch.randn(2, length + 80, KV_HEADS, DIM)
            self.live[f"r{self.arrived}"] = Request(keys, values, first_step=length)
        batch = {name: 1 if each.computed else each.first_step for name, each in self.live.items()}
        for name, new in batch.items():
            self.schedule(name, new)
        self.poison()
        self.compute(batch)
        for name, new in batch.items():
            self.live[name].computed += new
            self.move_on(name)

    def schedule(self, name: str, new: int) -> None:
        done = self.live[name].computed
        # A scheduler that runs ahead frees by what is settled, which lags behind.
        settled = max(0, done - self.random.choice((0, 0, 1, 300)))
        self.manager.remove_skipped_blocks(name, settled, self.live[name].first_step)
        for block in self.manager.allocate_new_blocks(name, done + new, done + new):
            # As the engine does with blocks of full attention.
            self.rows_of(block.block_id).zero_()

    def rows_of(self, block: int) -> torch.Tensor:
        return self.cache[block * self.ratio : (block + 1) * self.ratio]

    def held(self, name: str) -> list[int]:
        return [b.block_id for b in self.manager.req_to_blocks[name] if not b.is_null]

    def poison(self) -> None:
        """Make every block that nobody holds unreadable."""
        held = {block for name in self.live for block in self.held(name)}
        for block in set(range(1, 160)) - held:
            self.rows_of(block).fill_(float("nan"))

    def compute(self, batch: dict[str, int]) -> None:
        table, starts = self.tables(batch)
        lens = [self.live[name].computed + new for name, new in batch.items()] + [0]
        common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor(lens, dtype=torch.int32),
            num_reqs=len(lens),
            num_actual_tokens=int(starts[-1]),
            max_query_len=max(batch.values()),
            max_seq_len=max(lens),
            block_table_tensor=table,
            slot_mapping=self.slots(batch, table),
        )
        shown = self.builder.build(0, common)
        before = table.clone()
        query = torch.randn(int(starts[-1]), HEADS, DIM)
        keys, values = (self.new_of(batch, name) for name in ("keys", "values"))
        self.impl.do_kv_cache_update(LAYER, keys, values, self.cache, common.slot_mapping)
        output = torch.zeros_like(query)
        self.impl.forward(LAYER, query, keys, values, self.cache, shown, output)
        self.counts["inputs_changed"] += not torch.equal(before, table)
        for row, name in enumerate(batch):
            own = slice(int(starts[row]), int(starts[row + 1]))
            self.judge(name, row, shown, query[own], output[own])

    def tables(self, batch: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Every block a request was ever given, as the worker remembers them, and row starts."""
        table = torch.zeros(len(batch) + 1, LONGEST // KERNEL, dtype=torch.int32)
        for row, name in enumerate(batch):
            given = self.given.setdefault(name, [])
            given += [b.block_id for b in self.manager.req_to_blocks[name][len(given) :]]
            blocks = torch.tensor(given)
            fine = (blocks[:, None] * self.ratio + torch.arange(self.ratio)).flatten()
            table[row, : len(fine)] = fine.to(torch.int32)
        starts = torch.tensor([0, *batch.values(), 0]).cumsum(0).to(torch.int32)
        return table, starts

    def slots(self, batch: dict[str, int], table: torch.Tensor) -> torch.Tensor:
        found = []
        for row, (name, new) in enumerate(batch.items()):
            position = self.live[name].computed + torch.arange(new)
            found.append(table[row][position // KERNEL].long() * KERNEL + position % KERNEL)
        return torch.cat(found)

    def new_of(self, batch: dict[str, int], what: str) -> torch.Tensor:
        parts = [(self.live[name], new) for name, new in batch.items()]
        return torch.cat([getattr(r, what)[r.computed : r.computed + new] for r, new in parts])

    def judge(
        self, name: str, row: int, shown: Any, query: torch.Tensor, output: torch.Tensor
    ) -> None:
        request, self.counts["rows"] = self.live[name], self.counts["rows"] + 1
        read = shown.block_table[row][: -(-int(shown.seq_lens[row]) // KERNEL)]
        held = set(self.held(name))
        self.counts["freed_reads"] += any(int(b) // self.ratio not in held for b in read)
        close = torch.allclose(output, self.expected(request, query), atol=1e-4)
        self.counts["wrong_answers"] += not close
        if request.computed == 0:
            self.read_back(name, request, query)
        elif self.cut.dropped(request.first_step):
            self.counts["cut_rows"] += 1

    def expected(self, request: Request, query: torch.Tensor) -> torch.Tensor:
        """Attention over what stays and what came after, per query head."""
        answer = torch.zeros_like(query)
        for head in range(HEADS):
            own = head // (HEADS // KV_HEADS)
            seen = self.seen(request, own, request.computed + len(query))
            weights = attended(query[:, head], request.keys[seen, own])
            answer[:, head] = weights @ request.values[seen, own]
        return answer

    def seen(self, request: Request, head: int, length: int) -> list[int]:
        if not request.kept:
            return list(range(length))
        return [*request.kept[head], *range(self.cut.whole(request.first_step), length)]

    def read_back(self, name: str, request: Request, query: torch.Tensor) -> None:
        """Find what the cut left in the request's first blocks, by its keys and values."""
        tokens = request.first_step
        if not self.cut.dropped(tokens):
            return
        self.counts["cut_prompts"] += 1
        observe = self.builder.spec.observe
        scores = fp64_scores(query[-observe:], request.keys[:tokens])
        blocks = self.held(name)[: self.cut.kept // self.unit]
        rows = torch.cat([self.rows_of(block) for block in blocks])
        for head in range(KV_HEADS):
            request.kept.append(self.positions(request, head, rows[:, head]))
            self.judge_choice(request, scores[head], tokens - observe)

    def positions(self, request: Request, head: int, rows: torch.Tensor) -> list[int]:
        """Which of the request's tokens these places of the cache hold; -1 for none of them."""
        halves = rows.reshape(len(rows), 2 * KERNEL, DIM)
        # The kernel keeps keys transposed within a block, values as they come.
        keys = halves[:, :KERNEL].reshape(-1, DIM, KERNEL).transpose(1, 2).reshape(-1, DIM)
        values = halves[:, KERNEL:].reshape(-1, DIM)
        at = {tuple(key[:4].tolist()): place for place, key in enumerate(request.keys[:, head])}
        found = [at.get(tuple(key[:4].tolist()), -1) for key in keys]
        fits = torch.equal(request.values[found, head], values)
        self.counts["unknown_keys"] += found.count(-1) + (not fits)
        return found

    def judge_choice(self, request: Request, scores: torch.Tensor, observing: int) -> None:
        kept, whole = request.kept[-1], self.cut.whole(request.first_step)
        self.counts["not_distinct"] += len(set(kept)) != self.cut.kept or max(kept) >= whole
        stays = set(range(min(observing, whole), whole))
        self.counts["observers_lost"] += not stays <= set(kept)
        others = [position for position in kept if position < observing]
        gone = [p for p in range(min(observing, whole)) if p not in set(kept)]
        worst, best = scores[others].min(), scores[gone].max()
        self.counts["better_ones_gone"] += bool(worst < best - 1e-7)

    def move_on(self, name: str) -> None:
        """Decode on, end, or be thrown out: then all so far is computed again in one step."""
        request, lot = self.live[name], self.random.random()
        if request.computed >= len(request.keys) or lot < 0.02:
            self.manager.free(name)
            del self.live[name]
            self.given.pop(name)
        elif lot < 0.04:
            self.counts["preempted"] += 1
            self.manager.free(name)
            self.given.pop(name)
            request.first_step, request.computed, request.kept = request.computed, 0, []

    def run(self, steps: int) -> dict[str, int]:
        for _ in range(steps):
            self.step()
        for name in list(self.live):
            self.manager.free(name)
        left = self.free_at_start - self.pool.get_num_free_blocks()
        return {**self.counts, "blocks_left": left, "remembered": len(self.manager.first_steps)}


def refusal(call: Any) -> str:
    try:
        call()
    except EvictionRefused as error:
        return str(error)
    return ""


def merged(*specs: Any) -> str:
    try:
        return type(type(specs[0]).merge(list(specs))).__name__
    except AssertionError:
        return "not alike"


def backends() -> dict[str, Any]:
    stock = cpu_attn.CPUAttentionBackend
    return {
        "wired": sorted(WIRED_SNAPKV),
        "name": backend().get_name(),
        "kernel_blocks_are_stock": (
            backend().get_supported_kernel_block_sizes() == stock.get_supported_kernel_block_sizes()
        ),
        "refusing": {
            name: refusal(AttentionBackendEnum[name].get_class)
            for name in ("FLASH_ATTN", "TRITON_ATTN", "FLASHINFER", "CPU_MLA")
        },
    }


def specs() -> dict[str, Any]:
    rule, spec = active_snapkv(), ours(32)
    pool = BlockPool(num_gpu_blocks=10, enable_caching=False, hash_block_size=32)
    return {
        "managers": {
            type(each).__name__: KVCacheSpecRegistry.get_manager_class(each).__name__
            for each in (spec, full(32))
        },
        "kept": {unit: ours(unit).cut.kept for unit in (32, 128)},
        "prefix_cacheable": spec.prefix_cacheable,
        "uniform": {
            "alike": spec.is_uniform_with_collection({"a": spec, "b": ours(32)}),
            "with full attention": spec.is_uniform_with_collection({"a": spec, "b": full(32)}),
        },
        "merged": {
            "alike": merged(spec, ours(32)),
            "with full attention": merged(spec, full(32)),
        },
        "refused": {
            "other rule": refusal(active_rule),
            "window": refusal(lambda: scored_spec(full(32, sliding_window=64), rule)),
            "missed layer": refusal(lambda: builder(full(32))),
            "chunked": refusal(lambda: builder(spec, enable_chunked_prefill=True)),
            "changed block": refusal(lambda: manager(replace(spec, block_size=64), pool)),
        },
    }


def main() -> None:
    torch.set_num_threads(1)  # tiny operations: threads only wait for each other
    plugin.register()
    plugin.register()  # the engine loads plugins in more than one place
    # 32 as the kernel's block, and 128 that the kernel splits into 32.
    told = {
        **backends(),
        **specs(),
        "replay": {u: Replay(u).run(int(sys.argv[1])) for u in (32, 128)},
    }
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
