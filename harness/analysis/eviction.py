"""What evicting tokens saves per request, and what it costs in perplexity.

Method: the rule is read from the environment that the server was started with. Predicted are the
blocks of a request at its worst moment; measured is the largest number of blocks per running
request (``window.blocks_per_running_request``). Beside them stands the perplexity of the quality
prompts' text, teacher-forced, over the baseline's: the same tokens, so the ratio is the cost.

Not covered: what is lost in answers and retrieval (the quality section), and throughput.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.quality_results import Agreement, QualityAnalysis
from harness.analysis.results import TrialAnalysis
from harness.analysis.window import blocks_per_running_request
from harness.record import TrialRecord
from harness.specs.eviction import AnyRule, rule_from_env
from harness.units import Bytes, Tokens


@dataclass(frozen=True, slots=True)
class Evicting:
    """One variant's blocks per request and perplexity; ``rule`` None keeps every token.

    ``perplexity_ratio`` is over the baseline's on the same text, 1 for the baseline itself; None
    where no quality was measured.
    """

    variant: str
    rule: AnyRule | None
    length_tokens: Tokens
    block_size: Tokens
    block_bytes: Bytes
    predicted_blocks: int
    measured_blocks: float | None
    perplexity: float | None
    perplexity_ratio: float | None

    @property
    def holds(self) -> bool | None:
        """Whether the measured blocks stay within the predicted ones."""
        if self.measured_blocks is None:
            return None
        return self.measured_blocks <= self.predicted_blocks


def evictions(
    trials: Sequence[TrialAnalysis],
    records: Sequence[TrialRecord],
    quality: QualityAnalysis | None,
) -> tuple[Evicting, ...]:
    """The first sealed trial of each variant, if any variant evicts."""
    by_id = {record.run.trial.trial_id: record for record in records}
    found: dict[str, Evicting] = {}
    for trial in trials:
        if trial.status == "sealed" and trial.variant not in found:
            made = _evicting(trial, by_id[trial.trial_id], quality)
            if made is not None:
                found[trial.variant] = made
    return tuple(found.values()) if any(each.rule for each in found.values()) else ()


def _evicting(
    trial: TrialAnalysis, record: TrialRecord, quality: QualityAnalysis | None
) -> Evicting | None:
    theory, granted, server = trial.theory, trial.granted, record.run.server
    if server is None or theory is None or not granted.block_size or not granted.num_blocks:
        return None
    if not theory.blocks_per_request or not theory.kv_bytes_per_request:
        return None
    perplexity, ratio = _cost(trial, quality)
    return Evicting(
        variant=trial.variant,
        rule=rule_from_env(server.env),
        length_tokens=trial.workload["context_tokens"] + trial.workload["output_tokens"],
        block_size=granted.block_size,
        block_bytes=theory.kv_bytes_per_request // theory.blocks_per_request,
        predicted_blocks=theory.blocks_per_request,
        measured_blocks=blocks_per_running_request(record, granted.num_blocks),
        perplexity=perplexity,
        perplexity_ratio=ratio,
    )


def _cost(
    trial: TrialAnalysis, quality: QualityAnalysis | None
) -> tuple[float | None, float | None]:
    """Perplexity of the texts under this variant, and over the baseline's."""
    if quality is None:
        return None, None
    if trial.is_baseline:
        other = next((one.on_context for one in quality.variants if one.on_context), None)
        return (None, None) if other is None else (other.baseline_perplexity, 1.0)
    own = quality.of(trial.variant)
    seen: Agreement | None = own.on_context if own is not None else None
    return (None, None) if seen is None else (seen.perplexity, seen.perplexity_ratio)
