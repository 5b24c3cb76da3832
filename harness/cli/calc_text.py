"""The figures of ``kvbench calc`` as text: units on every number.

Method: several variants stand side by side first, then each has its tables. Rows and columns that
hold nothing without a memory are left out, and a note says what to add. Not covered: the figures
themselves (``calc_figures``).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from harness.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_duration,
    format_flops_per_s,
    format_percent,
    format_rate,
)

_WIDTH = 110


def render(results: Sequence[Mapping[str, Any]]) -> str:
    """All variants, side by side and in full; the notes that they share once, at the end."""
    parts = [_side_by_side(results)] if len(results) > 1 else []
    parts += [_variant(result) for result in results]
    notes = list(dict.fromkeys(note for result in results for note in result["notes"]))
    if notes:
        parts.append("\n".join(["notes:", *(f"- {note}" for note in notes)]))
    return "\n\n".join(parts)


def _side_by_side(results: Sequence[Mapping[str, Any]]) -> str:
    """A column per variant: what differs between them."""
    rows = [
        ("KV dtype", *(result["kv_cache_dtype"] for result in results)),
        ("KV bytes per token", *(f"{_count_of(r, 'kv_bytes_per_token')} B" for r in results)),
    ]
    known = any(_has_pool(result) for result in results)
    if known:
        rows.append(
            ("KV cache size, as printed", *(_count_of(r, "kv_cache_tokens") for r in results))
        )
    for index, first in enumerate(results[0]["per_context"]):
        tokens = format_count(first["context_tokens"])
        cells = [result["per_context"][index] for result in results]
        sizes = (format_bytes(cell["kv_bytes_per_request"]) for cell in cells)
        rows.append((f"KV of {tokens} tokens", *sizes))
        if known:
            fits = (format_count(cell["max_concurrency"], 2) for cell in cells)
            rows.append((f"requests of {tokens} that fit", *fits))
    return _table((results[0]["model"], *(result["variant"] for result in results)), rows)


def _count_of(result: Mapping[str, Any], key: str) -> str:
    return format_count(result[key])


def _has_pool(result: Mapping[str, Any]) -> bool:
    return result["num_blocks"] is not None


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
        ("KV bytes per token", _per_token(result)),
        ("block", f"{result['block_size']} tokens, {format_bytes(result['bytes_per_block'])}"),
        *(_pool(result) if _has_pool(result) else ()),
    ]
    if result["fixed_bytes_per_request"]:
        further = format_count(result["bytes_per_further_token"])
        fixed = format_bytes(result["fixed_bytes_per_request"])
        lines.append(("a long request", f"{fixed} + {further} B per further token"))
    return "\n".join(f"  {name:<28}{value}" for name, value in lines)


def _per_token(result: Mapping[str, Any]) -> str:
    here, unsplit = result["kv_bytes_per_token"], result["kv_bytes_per_token_unsplit"]
    if here == unsplit:
        return f"{format_count(here)} B (all layers)"
    return f"{format_count(here)} B per GPU (all layers; {format_count(unsplit)} B in one piece)"


def _pool(result: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return (
        ("KV pool", format_bytes(result["kv_cache_memory_bytes"])),
        ("blocks in the pool", format_count(result["num_blocks"])),
        ("KV cache size", _printed_size(result)),
        (
            f"requests of {format_count(result['max_model_len'])} tokens",
            format_count(result["max_concurrency_at_max_model_len"], 2),
        ),
    )


def _printed_size(result: Mapping[str, Any]) -> str:
    size = f"{format_count(result['kv_cache_tokens'])} tokens"
    if not result["fixed_bytes_per_request"]:
        return size
    # Where layers free blocks, the pool's bytes over a token's are another number.
    return f"{size}, as the engine prints it (the requests below × their length): no rate"


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
    rows = result["per_context"]
    columns: list[tuple[str, list[str]]] = [
        ("context", [format_count(row["context_tokens"]) for row in rows]),
        ("KV per request", [format_bytes(row["kv_bytes_per_request"]) for row in rows]),
        ("blocks", [format_count(row["blocks_per_request"]) for row in rows]),
    ]
    if _has_pool(result):
        fits = [format_count(row["max_concurrency"], 2) for row in rows]
        columns.append(("requests that fit", fits))
    columns += _for_requests(rows)
    heads, cells = zip(*columns, strict=True)
    return _table(heads, list(zip(*cells, strict=True)))


def _for_requests(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """What so many requests take, if a number was asked for; the share where a card is known."""
    asked = rows[0].get("requests")
    if asked is None:
        return []
    sizes = [format_bytes(row["kv_bytes_for_requests"]) for row in rows]
    columns = [(f"KV of {format_count(asked)} requests", sizes)]
    shares = [row["gpu_memory_utilization_to_set"] for row in rows]
    if any(share is not None for share in shares):
        whole = [format_percent(share) for share in shares]
        columns.append(("of the card, with weights", whole))
    return columns


def _memory(memory: Mapping[str, Any]) -> str:
    share = format_percent(memory["gpu_memory_utilization"], 0)
    usable = memory["total_bytes"] * memory["gpu_memory_utilization"]
    rows = [(f"{share} of {format_bytes(memory['total_bytes'])}", format_bytes(usable), "")]
    rows += [(f"− {t['name']}", format_bytes(t["bytes"]), t["assumption"]) for t in memory["terms"]]
    rows.append(("= KV cache", format_bytes(memory["kv_bytes"]), ""))
    text = _table(("memory of one GPU", "bytes", "assumption"), rows)
    levers = memory["levers"]
    if not levers:
        return text
    rows = [
        (lever["change"], format_count(lever["requests"], 1), format_bytes(lever["gained_bytes"]))
        for lever in levers
    ]
    tokens = format_count(levers[0]["context_tokens"])
    head = ("lever", f"requests of {tokens} that fit then", "worth this much more KV cache")
    return text + "\n" + _table(head, rows)


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
    device = (
        f"  {roofline['device']}: {format_bandwidth(roofline['bandwidth_bytes_per_s'])}, "
        f"{format_flops_per_s(roofline['flops_per_s'])} ({roofline['source']})"
    )
    shortest = format_count(roofline["per_context"][0]["context_tokens"])
    lines = [text, device, f"  {_arithmetic(batch, shortest)}", f"  {_reads(tokens)}"]
    return "\n".join(lines)


def _arithmetic(batch: int | None, tokens: str) -> str:
    if batch is None:
        return (
            f"at {tokens} tokens decoding is bound by memory whatever the batch: every request "
            "brings its own keys and values"
        )
    from_batch = f"from a batch of {format_count(batch)} on"
    return f"at {tokens} tokens decoding is bound by arithmetic {from_batch}"


def _reads(tokens: int | None) -> str:
    if tokens is None:
        return "a single request never reads more KV than weights"
    return f"a single request reads more KV than weights from {format_count(tokens)} tokens on"


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
