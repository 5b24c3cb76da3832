"""Draws ``kvbench calc``: KV memory and concurrency against context length, a line per variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import InputError
from harness.units import gibibytes


def draw(results: Sequence[Mapping[str, Any]], model: str, file: Path) -> None:
    """Write a PNG with one panel for bytes per request and one for requests that fit.

    Raises:
        InputError: a file that is no PNG, or a folder that isn't there.
    """
    if file.suffix.lower() != ".png":
        raise InputError(f"{file} is no PNG file name", next_move="write --plot FILE.png")
    if not file.parent.is_dir():
        raise InputError(f"the folder {file.parent} does not exist")
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    memory, concurrency = figure.subplots(1, 2)
    for result in results:
        _lines(memory, concurrency, result)
    _label(memory, "KV per request (GiB)")
    _label(concurrency, "requests that fit")
    if all(result["num_blocks"] is None for result in results):
        concurrency.text(0.5, 0.5, "no memory given", ha="center", transform=concurrency.transAxes)
    memory.legend(frameon=False)
    figure.suptitle(f"{model}: predicted KV cache")
    figure.savefig(file, dpi=150, metadata={"Software": None})


def _lines(memory: Any, concurrency: Any, result: Mapping[str, Any]) -> None:
    rows = sorted(result["per_context"], key=lambda row: int(row["context_tokens"]))
    lengths = [row["context_tokens"] for row in rows]
    label = result.get("variant") or result["kv_cache_dtype"]
    memory.plot(lengths, [gibibytes(r["kv_bytes_per_request"]) for r in rows], "o-", label=label)
    if result["num_blocks"] is not None:
        concurrency.plot(lengths, [r["max_concurrency"] for r in rows], "o-", label=label)


def _label(axes: Any, title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("context (tokens)")
    axes.set_title(title, fontsize=10)
    axes.grid(visible=True, alpha=0.3)
