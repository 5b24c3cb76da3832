"""The figures of ``kvbench calc`` as text: a table per variant, units on every number."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from harness.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)

_WIDTH = 110


def render(results: Sequence[Mapping[str, Any]]) -> str:
    """All variants, one below the other; the notes that they share once, at the end."""
    parts = [_variant(result) for result in results]
    notes = list(dict.fromkeys(note for result in results for note in result["notes"]))
    if notes:
        parts.append("\n".join(["notes:", *(f"- {note}" for note in notes)]))
    return "\n\n".join(parts)


def _variant(result: Mapping[str, Any]) -> str:
    title = result["model"] + (f" as {result['variant']}" if "variant" in result else "")
    parts = [title, _facts(result), _groups(result["layer_groups"]), _contexts(result)]
    if result["memory"] is not None:
        parts.append(_memory(result["memory"]))
    if result["roofline"] is not None:
        parts.append(_roofline(result["roofline"]))
    return "\n".join(parts)


def _facts(result: Mapping[str, Any]) -> str:
    lines = [
        ("KV dtype", result["kv_cache_dtype"]),
        ("KV bytes per token", f"{format_count(result['kv_bytes_per_token'])} B (all layers)"),
        ("block", f"{result['block_size']} tokens, {format_bytes(result['bytes_per_block'])}"),
        ("KV pool", format_bytes(result["kv_cache_memory_bytes"])),
        ("blocks in the pool", format_count(result["num_blocks"])),
        ("KV cache size", f"{format_count(result['kv_cache_tokens'])} tokens"),
        (
            f"requests of {format_count(result['max_model_len'])} tokens",
            format_count(result["max_concurrency_at_max_model_len"], 2),
        ),
    ]
    if result["fixed_bytes_per_request"]:
        further = format_count(result["bytes_per_further_token"])
        fixed = format_bytes(result["fixed_bytes_per_request"])
        lines.append(("a long request", f"{fixed} + {further} B per further token"))
    return "\n".join(f"  {name:<28}{value}" for name, value in lines)


def _groups(groups: Sequence[Mapping[str, Any]]) -> str:
    """Equal groups are told once, with their number."""
    counted: dict[tuple[Any, ...], int] = {}
    for group in groups:
        key = tuple(group.values())
        counted[key] = counted.get(key, 0) + 1
    rows = [
        (f"{count} ×", kind, format_count(layers), format_count(window), format_count(block),
         format_bytes(page), format_count(blocks))
        for (kind, layers, window, block, page, blocks), count in counted.items()
    ]  # fmt: skip
    head = ("groups", "kind", "layers", "window", "block", "page", "blocks/request")
    return _table(head, rows)


def _contexts(result: Mapping[str, Any]) -> str:
    asked = "requests" in result["per_context"][0]
    head = ["context", "KV per request", "blocks", "requests that fit"]
    if asked:
        head += [f"KV of {result['per_context'][0]['requests']} requests", "utilization"]
    rows = []
    for row in result["per_context"]:
        cells = [
            format_count(row["context_tokens"]),
            format_bytes(row["kv_bytes_per_request"]),
            format_count(row["blocks_per_request"]),
            format_count(row["max_concurrency"], 2),
        ]
        if asked:
            cells += [
                format_bytes(row["kv_bytes_for_requests"]),
                format_percent(row["gpu_memory_utilization_to_set"]),
            ]
        rows.append(cells)
    return _table(head, rows)


def _memory(memory: Mapping[str, Any]) -> str:
    share = format_percent(memory["gpu_memory_utilization"], 0)
    usable = memory["total_bytes"] * memory["gpu_memory_utilization"]
    rows = [(f"{share} of {format_bytes(memory['total_bytes'])}", format_bytes(usable), "")]
    rows += [(f"− {t['name']}", format_bytes(t["bytes"]), t["assumption"]) for t in memory["terms"]]
    rows.append(("= KV cache", format_bytes(memory["kv_bytes"]), ""))
    text = _table(("memory of one GPU", "bytes", "assumption"), rows)
    levers = [(lever["change"], format_bytes(lever["gained_bytes"])) for lever in memory["levers"]]
    return text + "\n" + _table(("lever", "gains"), levers) if levers else text


def _roofline(roofline: Mapping[str, Any]) -> str:
    rows = [
        (format_count(r["context_tokens"]), format_duration(r["ttft_s"]),
         format_duration(r["tpot_s"]), format_count(r["requests_at_once"]),
         format_rate(r["output_tokens_per_s"], "tok/s", 0))
        for r in roofline["per_context"]
    ]  # fmt: skip
    head = ("context", "TTFT at least", "TPOT at least (one request)", "at once", "output at most")
    text = _table(head, rows)
    batch, tokens = roofline["compute_bound_batch"], roofline["kv_exceeds_weights_at_tokens"]
    rate = roofline["flops_per_s"] / 1e12
    device = (
        f"  {roofline['device']}: {format_bandwidth(roofline['bandwidth_bytes_per_s'])}, "
        f"{rate:,.0f} TFLOP/s ({roofline['source']})"
    )
    bounds = (
        f"  decode is bound by arithmetic from batch {format_count(batch)}; "
        f"one request reads more KV than weights from {format_count(tokens)} tokens"
    )
    return "\n".join([text, device, bounds])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE, pad_edge=False)
    for i, title in enumerate(head):
        table.add_column(title, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(cell or "" for cell in row))
    target = io.StringIO()
    Console(file=target, width=_WIDTH, no_color=True, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in target.getvalue().rstrip("\n").splitlines())
