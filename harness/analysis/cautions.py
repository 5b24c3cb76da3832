"""What the reader of all figures should know before believing any of them.

Method: each caution is one known way of misreading KV-cache numbers, told only where the run's own
facts give cause, with what to do about it. Not covered: faults of single figures (``verdict``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from harness.analysis.headline import request_length
from harness.analysis.quality import has_random_weights
from harness.analysis.quality_results import QualityAnalysis
from harness.analysis.results import Caution, Comparison, KvComparison, Occupancy, TrialAnalysis
from harness.analysis.sanity import scale_warning
from harness.analysis.shared_reasons import by_reason
from harness.analysis.stats import MIN_REPLICATES
from harness.record import ATTACHED, BenchRecord, TrialRecord
from harness.units import (
    counted,
    format_bytes,
    format_count,
    format_percent,
    format_ratio,
    listed,
)

#: A latent (MLA) model whose cache is stored as full heads takes about 14 times its due.
_NOT_LATENT_ABOVE = 5.0
_SMALL_DTYPES = ("fp8", "int8", "int4", "nvfp4", "turboquant")


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that cautions are drawn from."""

    bench: BenchRecord
    records: Sequence[TrialRecord]
    trials: Sequence[TrialAnalysis]
    comparisons: Sequence[Comparison]
    kv: Sequence[KvComparison]
    occupancy: Sequence[Occupancy]
    never_run: int
    quality: QualityAnalysis | None = None


def cautions(evidence: Evidence) -> tuple[Caution, ...]:
    """Return the cautions that this run gives cause for."""
    return tuple(caution for check in _CHECKS for caution in check(evidence))


def _incomplete(evidence: Evidence) -> Iterator[Caution]:
    failed = [trial for trial in evidence.trials if trial.status == "failed"]
    if failed:
        reason = failed[0].reason or "no reason was recorded"
        text = (
            f"{len(failed)} of {counted(len(evidence.trials), 'trial')} failed; the first: {reason}"
        )
        yield Caution("trials_failed", text)
    open_trials = sum(trial.status == "started" for trial in evidence.trials) + evidence.never_run
    if open_trials:
        yield Caution(
            "trials_unfinished",
            f"{counted(open_trials, 'trial of this run was', 'trials of this run were')} not "
            "finished; --resume runs the rest",
        )
    for why in by_reason(evidence.bench.skipped):
        was = "was" if len(why.head) == 1 else "were"
        likewise = f" So were, likewise, {listed(why.likewise)}." if why.likewise else ""
        yield Caution("variant_skipped", f"{listed(why.head)} {was} skipped: {why.text}.{likewise}")


def _replicates(evidence: Evidence) -> Iterator[Caution]:
    rows = (comparison.row("output_throughput") for comparison in evidence.comparisons)
    counts = [len(c.replicates) for row in rows if row for c in row.cells if c.replicates]
    fewest = min(counts, default=MIN_REPLICATES)
    if fewest < MIN_REPLICATES:
        yield Caution(
            "no_interval",
            f"No interval where a variant has only {counted(fewest, 'repeat')}: a difference "
            f"can't be told from noise there. An interval needs {MIN_REPLICATES} or more.",
        )


def _machine(evidence: Evidence) -> Iterator[Caution]:
    if evidence.bench.environment.profile == "cpu":
        yield Caution(
            "cpu_profile",
            "CPU profile: a small embedded model on this machine's processor. Capacity per byte "
            "carries over to a GPU; speeds and latencies do not.",
        )
    if evidence.bench.environment.profile == ATTACHED:
        yield Caution(
            "attached",
            "Attached: a server that was running already was measured. Its machine, flags, memory "
            "and earlier load are not known here.",
        )
    if evidence.bench.beside:
        was, both = ("was", "the two") if len(evidence.bench.beside) == 1 else ("were", "all")
        yield Caution(
            "not_alone",
            f"{', '.join(evidence.bench.beside)} {was} measured on this machine at the same time: "
            f"{both} shared its cores and memory, so speeds are worth little; run it again alone",
        )
    if evidence.bench.environment.git_dirty:
        yield Caution("git_dirty", "the code had uncommitted changes when the run was taken")
    if any(has_random_weights(record.run.trial.server_flags) for record in evidence.records):
        yield Caution(
            "dummy_weights",
            "some weights were random: memory and speed are true, text means nothing",
        )
    stamps = {trial.variant: trial.stamp for trial in evidence.trials if trial.stamp != "measured"}
    for variant, stamp in stamps.items():
        yield Caution("not_measured", f"{variant} is {stamp}, not measured")


def _theory(evidence: Evidence) -> Iterator[Caution]:
    if (length := request_length(evidence.kv)) is not None:
        yield Caution(
            "capacity_in_requests",
            f"KV capacity is what the engine prints, requests that fit × {format_count(length)} "
            "tokens: where layers free blocks that is more than the pool ever stores, so read its "
            "ratio as one of requests",
        )
    for pool in evidence.kv:
        if pool.predicted is None and pool.predicted_reason is not None:
            yield Caution("theory_unknown", f"{pool.variant}: no theory, {pool.predicted_reason}")
        if pool.agrees is False:
            yield Caution("theory_disagrees", f"{pool.variant}: {_disagreement(pool)}")
        if (excess := _excess(pool)) is not None and excess > _NOT_LATENT_ABOVE:
            yield Caution(
                "layout_not_as_modelled",
                f"{pool.variant} takes {format_ratio(excess, 1)} the predicted bytes per token; on "
                "a latent-attention (MLA) model that means that MLA is not active",
            )
        tokens = dict(pool.granted_tokens_by_launch)
        if tokens and max(tokens.values()) != min(tokens.values()):
            yield Caution(
                "grant_varies",
                f"{pool.variant} was granted {format_count(min(tokens.values()))} to "
                f"{format_count(max(tokens.values()))} KV tokens by its {len(tokens)} launches",
            )


def _disagreement(pool: KvComparison) -> str:
    if pool.predicted is None:
        return "there is no prediction"
    if pool.error_tokens == 0:
        return (
            f"{format_count(pool.granted.num_blocks)} blocks of {pool.granted.block_size} tokens "
            f"granted, {format_count(pool.predicted.num_blocks)} of {pool.predicted.block_size} "
            "predicted"
        )
    return (
        f"{format_count(pool.granted.kv_cache_tokens)} KV tokens granted, "
        f"{format_count(pool.predicted.kv_cache_tokens)} predicted "
        f"({format_percent(pool.error_fraction, 2)} off)"
    )


def _excess(pool: KvComparison) -> float | None:
    predicted = pool.predicted.kv_bytes_per_token if pool.predicted is not None else None
    if not predicted or pool.granted.kv_bytes_per_token is None:
        return None
    return pool.granted.kv_bytes_per_token / predicted


def _blocks(evidence: Evidence) -> Iterator[Caution]:
    sizes = {trial.variant: trial.granted.block_size for trial in evidence.trials}
    lengths = [trial.workload.get("context_tokens") for trial in evidence.trials]
    shortest = min((length for length in lengths if isinstance(length, int)), default=None)
    for variant, size in sizes.items():
        if size is not None and shortest is not None and shortest < size:
            yield Caution(
                "block_longer_than_prompt",
                f"{variant} has blocks of {size:,} tokens, prompts are as short as {shortest:,}: "
                "most of a block stays empty and no prefix can be shared",
            )


def _quality(evidence: Evidence) -> Iterator[Caution]:
    small = dict.fromkeys(
        pool.variant
        for pool in evidence.kv
        if (pool.kv_cache_dtype or "").startswith(_SMALL_DTYPES)
    )
    for variant in small:
        if variant in evidence.bench.skipped or _measured(evidence.quality, variant):
            continue
        yield Caution(
            "quality_unmeasured",
            f"{variant} stores keys and values in fewer bits: capacity can double while answers "
            f"break; {_quality_move(evidence.quality)}",
        )
    told: dict[str, str] = {}
    for record in evidence.records:
        lines = record.run.server.log_warnings if record.run.server is not None else ()
        if (line := scale_warning(lines)) is not None:
            told.setdefault(record.run.trial.variant, line)
    for variant, line in told.items():
        yield Caution("uncalibrated_scale", f"{variant}: the engine warns of its scale: {line}")


def _quality_move(quality: QualityAnalysis | None) -> str:
    """What can be done about answers that nobody compared; a judge needs stored ones."""
    if quality is None:
        return (
            "this run asked for no answers, so there is nothing to judge: measure again with "
            "`--set quality=true`"
        )
    return "its answers were asked for and not measured to the end: see under Answer quality why"


def _measured(quality: QualityAnalysis | None, variant: str) -> bool:
    found = quality.of(variant) if quality is not None else None
    return found is not None and found.standing != "not measured"


def _memory(evidence: Evidence) -> Iterator[Caution]:
    spans = [seen.device_span_bytes for seen in evidence.occupancy if seen.device_flat]
    known = [span for span in spans if span is not None]
    if known:
        yield Caution(
            "memory_flat",
            "the server's memory stays flat under load (it moved by at most "
            f"{format_bytes(max(known))}) because the KV pool is allocated at start; only the "
            "engine's own gauge shows KV in use",
        )
    ratios = [pool.capacity_ratio for pool in evidence.kv if pool.capacity_ratio is not None]
    budget = evidence.bench.scenario.get("kv_budget") or {}
    if ratios and budget.get("mode") == "engine":
        yield Caution(
            "budget_of_engine",
            "each variant's pool is what the engine picked: a capacity ratio mixes the size of the "
            "pool with the bytes per token; compare bytes per token first",
        )


_CHECKS: tuple[Callable[[Evidence], Iterator[Caution]], ...] = (
    _incomplete,
    _machine,
    _replicates,
    _theory,
    _blocks,
    _quality,
    _memory,
)
