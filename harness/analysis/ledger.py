"""Where a server's memory went: predicted, said by the engine, seen by the meter, unexplained.

Method: a ledger has four lines (weights, KV pool, activation and graphs, other). Each is taken as
the engine reported it, from its log and ``cache_config_info``, or as predicted where the engine is
silent. What the meter saw after loading, less what was there before, must equal their sum; the
remainder is shown and above 5 % the ledger is suspect. A line that nobody states falls into the
remainder, and the verdict names it.

The meter is NVML's device memory (before: ahead of the start) or, without a GPU, the anonymous
memory of the worker processes (before: when they began to load the weights, so interpreters and
libraries are left out); old records that lack both have the tree's RSS. The CPU backend repacks
its linear weights for oneDNN and the allocator keeps what that frees: theory states that second
copy as ``other``.

Log figures are per GPU, printed to 0.01 GiB; they are multiplied by the number of GPUs (tensor ×
pipeline parallel), as the meter adds up all of them. ``peak activation`` in vLLM's log already
contains its estimate for CUDA graphs, so the captured size is not added to it. Not covered: memory
outside the server's processes, and ranks of unequal size.

Source: vLLM 0.32.0, ``v1/worker/gpu_worker.py`` and ``gpu_model_runner.py`` (the log's wording).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.analysis.granted import LOG_FIGURES, granted_pool_bytes, read_gib
from harness.analysis.results import Ledger, LedgerLine, Summary, Verdict
from harness.record import Run, ServerFacts, TrialRecord
from harness.units import Bytes, Fraction, format_bytes, format_percent

#: A remainder above this share of the memory taken makes the ledger suspect.
OPEN_ABOVE: Fraction = 0.05


@dataclass(frozen=True, slots=True)
class PredictedMemory:
    """What theory expects one server to take, all its GPUs together."""

    weights_bytes: Bytes | None = None
    kv_pool_bytes: Bytes | None = None
    activation_and_graphs_bytes: Bytes | None = None
    other_bytes: Bytes | None = None


def ledger(trial: TrialRecord, summary: Summary, predicted: PredictedMemory) -> Ledger | None:
    """Return the ledger of the trial's server; None if kvbench did not launch it."""
    server = trial.run.server
    if server is None or not server.launched:
        return None
    lines = _lines(trial.run, server, predicted)
    meter, before, loaded, peak = _seen(server, summary)
    known = [_best(line) for line in lines]
    stated = [amount for amount in known if amount is not None]
    explained = sum(stated) if stated else None
    remainder = _remainder(before, loaded, explained)
    taken = None if before is None or loaded is None else loaded - before
    fraction = None if remainder is None or not taken else remainder / taken
    silent = [line.name for line, amount in zip(lines, known, strict=True) if amount is None]
    return Ledger(
        variant=trial.run.trial.variant,
        trial_id=trial.run.trial.trial_id,
        meter=meter,
        lines=lines,
        before_bytes=before,
        loaded_bytes=loaded,
        peak_bytes=peak,
        explained_bytes=explained,
        remainder_bytes=remainder,
        remainder_fraction=fraction,
        verdict=_verdict(remainder, fraction, silent),
    )


def gpus(flags: Mapping[str, Any]) -> int:
    """GPUs that one server spreads over: tensor × pipeline parallel."""
    ways = (flags.get("tensor_parallel_size"), flags.get("pipeline_parallel_size"))
    tensor, pipeline = (int(way) if isinstance(way, int) and way > 0 else 1 for way in ways)
    return tensor * pipeline


def _lines(run: Run, server: ServerFacts, predicted: PredictedMemory) -> tuple[LedgerLine, ...]:
    count = gpus(run.trial.server_flags)
    said = {name: _scaled(read_gib(server.log_kv_lines, name), count) for name in LOG_FIGURES}
    weights, consumed = said["weights"], said["consumed"]
    pool = _scaled(granted_pool_bytes(run), count)
    activation = said["activation"]
    other = None if weights is None or consumed is None else max(consumed - weights, 0)
    return (
        LedgerLine("weights", predicted.weights_bytes, weights),
        LedgerLine("kv_pool", predicted.kv_pool_bytes, pool),
        LedgerLine(
            "activation_and_graphs",
            predicted.activation_and_graphs_bytes,
            said["graphs"] if activation is None else activation,
        ),
        LedgerLine("other", predicted.other_bytes, other),
    )


def _scaled(amount: Bytes | None, count: int) -> Bytes | None:
    return None if amount is None else amount * count


Meter = Literal["nvml", "workers", "rss"]


def _seen(
    server: ServerFacts, summary: Summary
) -> tuple[Meter | None, Bytes | None, Bytes | None, Bytes | None]:
    """Which meter saw the server, and its readings before start, after load and at the peak."""
    if server.device_used_loaded_bytes is not None:
        before = server.device_used_before_bytes
        return "nvml", before, server.device_used_loaded_bytes, summary.gpu_used_peak_bytes
    if server.worker_loaded_bytes is not None and server.worker_before_weights_bytes is not None:
        grown = _grown(summary.rss_peak_bytes, server.rss_loaded_bytes)
        peak = None if grown is None else server.worker_loaded_bytes + grown
        return "workers", server.worker_before_weights_bytes, server.worker_loaded_bytes, peak
    if server.rss_loaded_bytes is not None:
        # The processes did not exist before they were started: nothing was resident.
        return "rss", 0, server.rss_loaded_bytes, summary.rss_peak_bytes
    return None, None, None, None


def _grown(peak: Bytes | None, loaded: Bytes | None) -> Bytes | None:
    """What the tree took under load; its RSS counts shared pages twice, but those do not grow."""
    return None if peak is None or loaded is None else max(0, peak - loaded)


def _best(line: LedgerLine) -> Bytes | None:
    return line.predicted_bytes if line.granted_bytes is None else line.granted_bytes


def _remainder(before: Bytes | None, loaded: Bytes | None, explained: Bytes | None) -> Bytes | None:
    if before is None or loaded is None or explained is None:
        return None
    return loaded - before - explained


def _verdict(remainder: Bytes | None, fraction: Fraction | None, silent: Sequence[str]) -> Verdict:
    unstated = f"; nobody states {', '.join(silent)}" if silent else ""
    if remainder is None or fraction is None:
        reason = f"the ledger can't be closed: memory was not seen before and after load{unstated}"
        return Verdict("ledger", "suspect", "ledger_unknown", reason)
    share = f"{format_bytes(remainder)} ({format_percent(fraction)}) is unexplained"
    if abs(fraction) > OPEN_ABOVE:
        limit = format_percent(OPEN_ABOVE, 0)
        reason = f"{share}, more than {limit} of the memory taken{unstated}"
        return Verdict("ledger", "suspect", "ledger_open", reason)
    return Verdict("ledger", "valid", "ledger_closes", f"{share}{unstated}")
