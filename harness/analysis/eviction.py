"""What evicting tokens saves per request, and what it costs in perplexity.

Method: the rule is read from the environment that the server was started with. A request's blocks
are told twice, at its worst moment and while it decodes, predicted from the rule and measured as
the largest number per running request (``request_blocks``): over all readings of the load, and over
those at which every running request had shown its second token: the step of the first one still
holds the whole prompt where a rule cuts it afterwards. Perplexity is of the quality prompts'
last quarter, teacher-forced, the same tokens at the same places for every variant: servers that
evict as they go have long left the budget there, and where a prompt is cut once it is computed
that part of it is decoded behind the cut.

Policies of kvpress stand beside, not among them: transformers compresses a prefill, the bytes are
those of its cache's tensors, and the same places are scored behind it. Not covered: what is lost
in answers and retrieval (the quality section), and throughput.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis.latency import known
from harness.analysis.quality_results import Agreement, QualityAnalysis
from harness.analysis.request_blocks import blocks_per_running_request
from harness.analysis.results import TrialAnalysis
from harness.errors import KvbenchError
from harness.record import EngineSample, TrialRecord
from harness.specs.eviction import AnyRule, rule_from_env
from harness.specs.model import model_spec
from harness.theory.eviction import kept_by_ratio
from harness.theory.held import decoding_blocks
from harness.theory.kv import bytes_per_token, layer_caches
from harness.theory.settings import EngineSettings
from harness.units import Bytes, Fraction, Tokens


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """One variant's blocks per request and perplexity; ``rule`` None keeps every token.

    ``predicted_blocks``/``measured_blocks`` are the most that a request holds at any moment, those
    with ``decoding`` the most while it decodes. ``perplexity`` is of the tails of the texts, its
    ratio over the baseline's (1 for the baseline itself); None where it was not measured.
    """

    variant: str
    rule: AnyRule | None
    length_tokens: Tokens
    block_size: Tokens
    block_bytes: Bytes
    predicted_blocks: int
    measured_blocks: float | None
    predicted_decoding: int | None
    measured_decoding: float | None
    perplexity: float | None
    perplexity_ratio: float | None

    @property
    def holds(self) -> bool | None:
        """Whether the measured blocks stay within the predicted ones."""
        if self.measured_blocks is None:
            return None
        return self.measured_blocks <= self.predicted_blocks


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy of kvpress: what it left of a prefill, and what that costs.

    ``cache_bytes`` is the mean over the texts, measured on the tensors' storage; ``predicted_*``
    follow from the ratio and the model's bytes per token. ``perplexity_ratio`` is over that of
    transformers without a policy, which was measured beside it. ``status`` and ``reason`` are
    those of its trial.
    """

    variant: str
    press: str
    ratio: Fraction
    status: str
    reason: str | None
    engine_version: str | None
    prefill_tokens: Tokens
    kept_tokens: float | None
    predicted_tokens: int
    cache_bytes: float | None
    predicted_bytes: Bytes | None
    perplexity: float | None
    perplexity_ratio: float | None


def eviction_results(
    trials: Sequence[TrialAnalysis],
    records: Sequence[TrialRecord],
    quality: QualityAnalysis | None,
) -> tuple[EvictionResult, ...]:
    """The first sealed trial of each variant, if any variant evicts."""
    if not any(r.run.server is not None and rule_from_env(r.run.server.env) for r in records):
        return ()
    by_id = {record.run.trial.trial_id: record for record in records}
    found: dict[str, EvictionResult] = {}
    for trial in trials:
        if trial.status == "sealed" and trial.variant not in found:
            made = _eviction_result(trial, by_id[trial.trial_id], quality)
            if made is not None:
                found[trial.variant] = made
    return tuple(found.values()) if any(each.rule for each in found.values()) else ()


def _eviction_result(
    trial: TrialAnalysis, record: TrialRecord, quality: QualityAnalysis | None
) -> EvictionResult | None:
    theory, granted, server = trial.theory, trial.granted, record.run.server
    if server is None or theory is None or not granted.block_size or not granted.num_blocks:
        return None
    if not theory.blocks_per_request or not theory.kv_bytes_per_request:
        return None
    perplexity, ratio = _cost(trial, quality)
    rule = rule_from_env(server.env)
    prompt, output = trial.workload["context_tokens"], trial.workload["output_tokens"]
    return EvictionResult(
        variant=trial.variant,
        rule=rule,
        length_tokens=prompt + output,
        block_size=granted.block_size,
        block_bytes=theory.kv_bytes_per_request // theory.blocks_per_request,
        predicted_blocks=theory.blocks_per_request,
        measured_blocks=blocks_per_running_request(record, granted.num_blocks),
        predicted_decoding=decoding_blocks(rule, granted.block_size, prompt, output),
        measured_decoding=measured_decoding(record, granted.num_blocks),
        perplexity=perplexity,
        perplexity_ratio=ratio,
    )


def measured_decoding(record: TrialRecord, blocks: int) -> float | None:
    """The most blocks per running request while all of them were decoding; None if never seen.

    Each must have had its second chunk behind it at the reading before. The first chunk will not
    do: it comes from the prompt's own step, and the gauge shows that step until the next one ends.
    """
    times = [request.chunk_times_s for request in record.requests]
    second = known(each[1] for each in times if len(each) > 1)
    last = known(each[-1] for each in times if len(each) > 1)

    def all_decode(before: EngineSample, after: EngineSample) -> bool:
        decoding = (second <= before.t_s) & (last >= after.t_s)
        return int(decoding.sum()) == after.requests_running

    return blocks_per_running_request(record, blocks, where=all_decode)


def _cost(
    trial: TrialAnalysis, quality: QualityAnalysis | None
) -> tuple[float | None, float | None]:
    """Perplexity of the texts' tails under this variant, and over the baseline's."""
    if quality is None:
        return None, None
    if trial.is_baseline:
        other = _whole_tail(quality)
        return (None, None) if other is None else (other.baseline_perplexity, 1.0)
    own = quality.of(trial.variant)
    seen = own.on_tail if own is not None else None
    return (None, None) if seen is None else (seen.perplexity, seen.perplexity_ratio)


def _whole_tail(quality: QualityAnalysis) -> Agreement | None:
    """The tails as most prompts were scored: what the baseline's own perplexity is told from."""
    tails = [one.on_tail for one in quality.variants] + [one.on_tail for one in quality.pressed]
    seen = [tail for tail in tails if tail is not None]
    return max(seen, key=lambda tail: tail.positions, default=None)


# ── kvpress ─────────────────────────────────────────────────────────────────────────────────


def policy_results(
    records: Sequence[TrialRecord], quality: QualityAnalysis | None
) -> tuple[PolicyResult, ...]:
    """Every policy of kvpress that the run asked for, measured or not, in running order."""
    tails = {one.variant: one.on_tail for one in (quality.pressed if quality is not None else ())}
    own = [record for record in records if record.run.trial.engine == "kvpress"]
    bare = next((_perplexity(tails, record) for record in own if _press(record) == "none"), None)
    return tuple(_policy_result(record, _perplexity(tails, record), bare) for record in own)


def _press(record: TrialRecord) -> str:
    return str(record.run.trial.server_flags.get("press"))


def _perplexity(tails: dict[str, Agreement | None], record: TrialRecord) -> float | None:
    tail = tails.get(record.run.trial.variant)
    return None if tail is None or record.run.status != "sealed" else tail.perplexity


def _policy_result(
    record: TrialRecord, perplexity: float | None, bare: float | None
) -> PolicyResult:
    run = record.run
    ratio = float(run.trial.server_flags.get("compression_ratio") or 0.0)
    prefill = int(run.trial.workload["context_tokens"])
    kept = kept_by_ratio(prefill, ratio)
    rate = _rate(record)
    samples = record.cache_samples
    return PolicyResult(
        variant=run.trial.variant,
        press=_press(record),
        ratio=ratio,
        status=run.status,
        reason=run.reason,
        engine_version=run.server.engine_version if run.server is not None else None,
        prefill_tokens=prefill,
        kept_tokens=fmean(s.sequence_tokens for s in samples) if samples else None,
        predicted_tokens=kept,
        cache_bytes=fmean(s.allocated_bytes for s in samples) if samples else None,
        predicted_bytes=None if rate is None else kept * rate,
        perplexity=perplexity,
        perplexity_ratio=perplexity / bare if perplexity is not None and bare else None,
    )


def _rate(record: TrialRecord) -> Bytes | None:
    """Bytes of a token in all layers, in the model's own dtype; None where nobody knows."""
    config = record.run.trial.model_config
    if config is None:
        return None
    try:
        model = model_spec(config, name=record.run.trial.model)
        return bytes_per_token(layer_caches(model, EngineSettings()))
    except KvbenchError:
        return None
