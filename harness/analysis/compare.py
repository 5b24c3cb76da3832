"""Where measurement meets theory: a run's records → everything that is said about it.

Method: each trial is summarised and judged by itself, then held against a prediction from its
model's config, its flags and the bytes of its pool; trials of one workload become rows. What a
prediction takes from the engine is the byte budget, never blocks or tokens. Trials that failed,
were skipped or never ended pass through as such and enter no comparison. Not covered: wording and
pictures (``report``); answer quality is joined from ``quality``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.analysis.cautions import Evidence, cautions
from harness.analysis.ceilings import beyond_ceilings, trial_ceilings, with_use
from harness.analysis.granted import granted_figures, granted_pool_bytes
from harness.analysis.headline import headline
from harness.analysis.ledger import PredictedMemory, gpus, ledger
from harness.analysis.metrics import summarize
from harness.analysis.occupancy import occupancy
from harness.analysis.quality import analyse_quality, gated, writes_no_text
from harness.analysis.results import (
    Analysis,
    Comparison,
    KvComparison,
    KvFigures,
    Ledger,
    Occupancy,
    Summary,
    Theory,
    TrialAnalysis,
    TrialCeilings,
)
from harness.analysis.rows import comparison
from harness.analysis.run_json import to_json
from harness.analysis.stats import METHOD
from harness.analysis.unstarted_server import stated_env, stated_pool
from harness.analysis.verdict import verdicts
from harness.errors import InputError, ModelConfigError
from harness.record import BenchRecord, QualityRecords, Run, TrialRecord
from harness.scenario.schema import shape_label, workload_label
from harness.specs.model import ModelSpec, model_spec
from harness.specs.pool import usable_blocks
from harness.theory.capacity import KvCapacity, predict_capacity, settings_from_flags
from harness.theory.prefix import requests_held
from harness.theory.settings import EngineSettings, with_default_step
from harness.theory.weights import WeightFootprint, repacked_bytes, weight_footprint
from harness.units import Tokens

__all__ = ["METHODS", "Analysis", "analyse", "to_json"]

#: How the figures were made, for every report and export.
METHODS: Mapping[str, str] = {
    "replicate": "one launch of the server; launches of the variants are interleaved in time",
    "value": "the median of the replicates; all of them are kept",
    "ratio": "the geometric mean of variant/baseline, paired by repeat",
    "counts": "counts that are zero somewhere have no ratio; they differ if their ranges over at "
    "least 3 repeats are apart",
    "interval": f"95 %, {METHOD}; none below 3 repeats",
    "noise_floor": "the largest ratio between two launches of the baseline itself (A/A); an effect "
    "inside it, or whose interval contains 1, is no difference shown",
    "percentiles": "pooled over the requests of a replicate, linearly interpolated; p99 from 100 "
    "values up",
    "steady": "from the first completion to the last send, if it holds one turn of all slots",
    "max_concurrency": "the engine's figure: worst case, every request at max_model_len",
    "kv_bytes_per_token": "granted: bytes of the pool / (blocks × block size), a little above the "
    "true rate as the last block is cut off; predicted: stored bytes over all layers, per GPU",
    "kv_cache_tokens": "what the engine prints: max concurrency × max_model_len (since about 0.24)",
}

_RAN = ("sealed", "failed")
NO_POOL = "transformers keeps no pool of blocks"


def analyse(
    bench: BenchRecord, trials: Sequence[TrialRecord], answers: QualityRecords | None = None
) -> Analysis:
    """Analyse one run; ``trials`` are those that left a record, in any order.

    ``answers`` are what is stored of its answer quality, if anything was asked.
    """
    every = _in_running_order(bench, trials)
    # What kvpress measured has an axis of its own (``eviction``): it is compared with no server.
    records = [record for record in every if record.run.trial.engine != "kvpress"]
    predictions = [_predict(bench, record.run) for record in records]
    groups = _by_workload(records)
    analysed = tuple(
        _trial(record, prediction, _peers(record, groups))
        for record, prediction in zip(records, predictions, strict=True)
    )
    shown = _with_policies(every, analysed)
    baseline = _baseline(bench, records)
    comparisons = _comparisons(analysed, records, baseline)
    kv = _kv(analysed, records, baseline)
    seen = _occupancies(records, predictions)
    quality = (
        analyse_quality(answers, baseline, _random_weights(records))
        if answers is not None
        else None
    )
    never_run = len(set(bench.trial_ids) - {record.run.trial.trial_id for record in every})
    return Analysis(
        run_id=bench.run_id,
        scenario=bench.scenario_name,
        profile=bench.environment.profile,
        baseline=baseline,
        headline=gated(
            headline(
                str(bench.scenario.get("question") or ""),
                baseline,
                shown,
                comparisons,
                kv,
                never_run,
            ),
            quality,
        ),
        trials=shown,
        comparisons=comparisons,
        kv=kv,
        ledgers=_ledgers(records, analysed, predictions),
        occupancy=seen,
        kv_budget_mode=_budget_mode(bench),
        kv_budget_bytes=bench.kv_budget_bytes,
        kv_budget_tokens=bench.kv_budget_tokens,
        methods=METHODS,
        cautions=cautions(
            Evidence(
                bench, records, shown, comparisons, kv, tuple(seen.values()), never_run, quality
            )
        ),
        skipped=dict(bench.skipped),
        quality=quality,
    )


def _budget_mode(bench: BenchRecord) -> str | None:
    budget = bench.scenario.get("kv_budget") or {}
    return budget.get("mode") if isinstance(budget, dict) else str(budget)


def _random_weights(records: Sequence[TrialRecord]) -> set[str]:
    return {
        record.run.trial.variant
        for record in records
        if writes_no_text(record.run.trial.server_flags)
    }


def _in_running_order(bench: BenchRecord, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    place = {trial_id: index for index, trial_id in enumerate(bench.trial_ids)}
    return sorted(
        trials, key=lambda r: (place.get(r.run.trial.trial_id, len(place)), r.run.trial.launch)
    )


def _baseline(bench: BenchRecord, records: Sequence[TrialRecord]) -> str:
    facts = [record.run.trial for record in records]
    marked = next((trial.variant for trial in facts if trial.is_baseline), None)
    return marked or str(bench.scenario.get("baseline") or (facts[0].variant if facts else ""))


@dataclass(frozen=True, slots=True)
class _Prediction:
    """What theory says of one trial's memory; ``reason`` where it says nothing of the pool."""

    capacity: KvCapacity | None
    reason: str | None
    weights: WeightFootprint | None = None
    model: ModelSpec | None = None
    settings: EngineSettings | None = None


def _predict(bench: BenchRecord, run: Run) -> _Prediction:
    if run.trial.engine == "reference":
        return _Prediction(None, NO_POOL)
    if run.trial.model_config is None:
        return _Prediction(None, "nothing is known of the model's configuration")
    device: Literal["cpu", "cuda"] = "cpu" if run.environment.profile == "cpu" else "cuda"
    flags = _with_defaults(run, device)
    blocks = flags.get("num_gpu_blocks_override")
    try:
        model = model_spec(run.trial.model_config, name=run.trial.model)
        env = run.server.env if run.server is not None else stated_env(bench, run)
        settings = settings_from_flags(flags, device, env=env)
        started = run.server is not None
        pool = granted_pool_bytes(run) if started else stated_pool(bench, run, model, settings)
        capacity = predict_capacity(model, settings, pool, num_blocks=blocks)
        return _Prediction(capacity, None, _weights(model, settings), model, settings)
    except InputError as error:
        return _Prediction(None, str(error))
    except (TypeError, ValueError) as error:
        # Flags are the engine's to judge; one of a form that theory does not read costs the theory.
        return _Prediction(None, f"the server's flags can't be read as numbers: {error}")


def _weights(model: ModelSpec, settings: EngineSettings) -> WeightFootprint | None:
    """Weights of one GPU; None where the config lacks what only weights need."""
    try:
        return weight_footprint(model, settings)
    except ModelConfigError:
        return None


def _with_defaults(run: Run, device: Literal["cpu", "cuda"]) -> dict[str, Any]:
    """The flags, with the default that depends on the size of the card."""
    cards = ((gpu.total_bytes, gpu.name) for gpu in run.environment.gpus)
    return with_default_step(run.trial.server_flags, device, cards)


def _trial(
    record: TrialRecord, prediction: _Prediction, peers: Sequence[TrialRecord]
) -> TrialAnalysis:
    run, facts = record.run, record.run.trial
    summary = summarize(record) if record.requests or run.status == "sealed" else None
    granted = granted_figures(run)
    best, no_ceilings = _ceilings(run, prediction, summary)
    beaten = () if best is None or summary is None else beyond_ceilings(best, summary)
    return replace(
        _unserved(run),
        summary=summary,
        theory=_theory(prediction.capacity, facts.workload),
        theory_reason=prediction.reason,
        granted=granted,
        granted_observed=granted.num_blocks is not None or granted.kv_cache_tokens is not None,
        verdicts=(*verdicts(record, summary, peers), *beaten),
        ceilings=best,
        ceilings_reason=no_ceilings,
    )


def _with_policies(
    every: Sequence[TrialRecord], served: Sequence[TrialAnalysis]
) -> tuple[TrialAnalysis, ...]:
    """The servers' trials with kvpress's in their places: what became of each, and no speed."""
    of_server = {trial.trial_id: trial for trial in served}
    return tuple(
        of_server.get(record.run.trial.trial_id) or _unserved(record.run) for record in every
    )


def _unserved(run: Run) -> TrialAnalysis:
    """A trial without what only a server has: what became of it, and no speed."""
    facts = run.trial
    return TrialAnalysis(
        trial_id=facts.trial_id,
        variant=facts.variant,
        is_baseline=facts.is_baseline,
        workload=facts.workload,
        workload_label=workload_label(facts.workload),
        repeat=facts.repeat,
        launch=facts.launch,
        status=run.status,
        reason=run.reason,
        stamp=facts.stamp,
        summary=None,
        theory=None,
        theory_reason=NO_POOL,
        granted=KvFigures(),
        granted_observed=False,
        verdicts=(),
        ceilings_reason="transformers is timed on no axis of the servers",
    )


def _ceilings(
    run: Run, prediction: _Prediction, summary: Summary | None
) -> tuple[TrialCeilings | None, str | None]:
    """What the device could do at best under this load, and how near the load came to it."""
    model, settings = prediction.model, prediction.settings
    if model is None or settings is None:
        return None, prediction.reason
    try:
        best, reason = trial_ceilings(run, model, settings)
        if best is None or summary is None:
            return best, reason
        return with_use(best, run, model, settings, summary), None
    except ModelConfigError as error:
        return None, str(error)


def _theory(capacity: KvCapacity | None, workload: Mapping[str, Any]) -> Theory | None:
    if capacity is None:
        return None
    length = _request_tokens(workload)
    # Requests that share a prefix or differ in length hold other blocks; see their own analyses.
    alike = None if shape_label(workload) else length
    held = None if alike is None else _requests_held(capacity, workload, alike)
    return Theory(
        kv=KvFigures(
            kv_bytes_per_token=capacity.kv_bytes_per_token,
            block_size=capacity.block_size,
            num_blocks=capacity.num_blocks,
            kv_cache_tokens=capacity.kv_cache_tokens,
            max_concurrency=capacity.max_concurrency,
            kv_cache_memory_bytes=capacity.kv_cache_memory_bytes,
        ),
        kv_bytes_per_request=None if length is None else capacity.kv_bytes_per_request(length),
        concurrency_at_workload=None if length is None else capacity.concurrency(length),
        kv_tokens_in_use=_held(held, length, _plain_tokens_per_request(capacity)),
        kv_bytes_in_use=_held(held, length, capacity.kv_bytes_per_request),
        kv_cache_dtype=capacity.kv_cache_dtype,
        notes=capacity.notes,
        blocks_per_request=None if length is None else capacity.blocks_per_request(length),
    )


def _requests_held(capacity: KvCapacity, workload: Mapping[str, Any], length: Tokens) -> int | None:
    """Requests in the pool at once: what the closed loop sends, as far as they fit."""
    slots, prompts = workload.get("concurrency"), workload.get("num_prompts")
    if not isinstance(slots, int) or not isinstance(prompts, int):
        return None
    if capacity.num_blocks is None:
        return min(slots, prompts)
    usable = usable_blocks(capacity.num_blocks)
    return requests_held(min(slots, prompts), usable, capacity.blocks_per_request(length))


def _held(
    requests: int | None, length: Tokens | None, each: Callable[[Tokens], int] | None
) -> int | None:
    return None if requests is None or length is None or each is None else requests * each(length)


def _plain_tokens_per_request(capacity: KvCapacity) -> Callable[[Tokens], Tokens] | None:
    """Slots of a request's blocks; None where layers don't share one table of blocks."""
    if len(capacity.layer_groups) != 1:
        return None
    return lambda length: capacity.blocks_per_request(length) * capacity.block_size


def _request_tokens(workload: Mapping[str, Any]) -> Tokens | None:
    prompt, output = workload.get("context_tokens"), workload.get("output_tokens")
    return prompt + output if isinstance(prompt, int) and isinstance(output, int) else None


def _key(workload: Mapping[str, Any]) -> str:
    return json.dumps(dict(workload), sort_keys=True, default=str)


def _by_workload(records: Sequence[TrialRecord]) -> dict[str, list[TrialRecord]]:
    groups: dict[str, list[TrialRecord]] = {}
    for record in records:
        groups.setdefault(_key(record.run.trial.workload), []).append(record)
    return groups


def _peers(record: TrialRecord, groups: Mapping[str, Sequence[TrialRecord]]) -> list[TrialRecord]:
    """The run's other trials under the same workload."""
    alike = groups[_key(record.run.trial.workload)]
    return [other for other in alike if other is not record]


def _comparisons(
    trials: Sequence[TrialAnalysis], records: Sequence[TrialRecord], baseline: str
) -> tuple[Comparison, ...]:
    groups: dict[str, list[TrialAnalysis]] = {}
    for trial in trials:
        groups.setdefault(_key(trial.workload), []).append(trial)
    like_baseline = _like_baseline(records, baseline)
    return tuple(comparison(group, baseline, like_baseline) for group in groups.values())


def _like_baseline(records: Sequence[TrialRecord], baseline: str) -> frozenset[str]:
    """Variants that were started exactly as the baseline was: its A/A runs."""
    starts = {
        record.run.trial.variant: _key(
            {**record.run.trial.server_flags, "kv_cache_memory_bytes": 0}
        )
        + _key(record.run.server.env if record.run.server is not None else {})
        for record in records
        if record.run.status == "sealed"
    }
    same = (name for name, start in starts.items() if start == starts.get(baseline))
    return frozenset(same) - {baseline}


def _kv(
    trials: Sequence[TrialAnalysis], records: Sequence[TrialRecord], baseline: str
) -> tuple[KvComparison, ...]:
    if not any(record.run.trial.engine == "vllm" for record in records):
        return ()
    shown = {name: _pool_of(name, trials, records) for name in _variants(trials, baseline)}
    base = shown.get(baseline)
    return tuple(_against(pool, base) for pool in shown.values())


def _variants(trials: Sequence[TrialAnalysis], baseline: str) -> list[str]:
    return sorted(dict.fromkeys(trial.variant for trial in trials), key=lambda n: n != baseline)


def _pool_of(
    variant: str, trials: Sequence[TrialAnalysis], records: Sequence[TrialRecord]
) -> KvComparison:
    own = [
        (trial, record.run)
        for trial, record in zip(trials, records, strict=True)
        if trial.variant == variant
    ]
    # The first launch that said what it was granted stands for the variant.
    trial, run = next((pair for pair in own if pair[0].granted_observed), own[0])
    predicted = trial.theory.kv if trial.theory is not None else None
    expected = predicted.kv_cache_tokens if predicted is not None else None
    error = _difference(trial.granted.kv_cache_tokens, expected)
    told = trial.theory.kv_cache_dtype if trial.theory is not None else None
    return KvComparison(
        variant=variant,
        is_baseline=trial.is_baseline,
        kv_cache_dtype=told or run.trial.server_flags.get("kv_cache_dtype"),
        engine_version=run.server.engine_version if run.server is not None else None,
        attention_backend=run.server.attention_backend if run.server is not None else None,
        predicted=predicted,
        predicted_reason=trial.theory_reason,
        granted=trial.granted,
        error_tokens=error,
        error_fraction=_ratio(error, expected),
        agrees=_agrees(trial.granted, predicted),
        granted_tokens_by_launch=_tokens_by_launch([trial for trial, _ in own]),
        concurrency_at_workload={
            t.workload_label: t.theory.concurrency_at_workload if t.theory is not None else None
            for t, _ in own
        },
        capacity_ratio=None,
        bytes_per_token_ratio=None,
    )


def _tokens_by_launch(trials: Sequence[TrialAnalysis]) -> tuple[tuple[int, Tokens], ...]:
    tokens = {trial.launch: trial.granted.kv_cache_tokens for trial in trials}
    return tuple((launch, count) for launch, count in sorted(tokens.items()) if count is not None)


def _difference(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left - right


def _ratio(left: float | None, right: float | None) -> float | None:
    return None if left is None or not right else left / right


def _agrees(granted: KvFigures, predicted: KvFigures | None) -> bool | None:
    """Whether both have the same blocks of the same size, and so the same tokens."""
    if predicted is None:
        return None
    pairs = [
        (granted.num_blocks, predicted.num_blocks),
        (granted.block_size, predicted.block_size),
        (granted.kv_cache_tokens, predicted.kv_cache_tokens),
    ]
    known = [(left, right) for left, right in pairs if left is not None and right is not None]
    compared = known and None not in (granted.kv_cache_tokens, predicted.kv_cache_tokens)
    return all(left == right for left, right in known) if compared else None


def _against(pool: KvComparison, base: KvComparison | None) -> KvComparison:
    if base is None:
        return pool
    mine, theirs = (_bytes_per_token(side) for side in (pool, base))
    own, other = (
        side.predicted.kv_cache_tokens if side.predicted else None for side in (pool, base)
    )
    return replace(
        pool,
        capacity_ratio=_ratio(pool.granted.kv_cache_tokens, base.granted.kv_cache_tokens),
        bytes_per_token_ratio=_ratio(mine, theirs),
        modelled_capacity_ratio=_ratio(own, other),
    )


def _bytes_per_token(pool: KvComparison) -> float | None:
    predicted = pool.predicted.kv_bytes_per_token if pool.predicted is not None else None
    return pool.granted.kv_bytes_per_token if predicted is None else predicted


def _occupancies(
    records: Sequence[TrialRecord], predictions: Sequence[_Prediction]
) -> dict[str, Occupancy]:
    seen: dict[str, Occupancy] = {}
    for record, prediction in zip(records, predictions, strict=True):
        rate = _rate_of_plain_cache(prediction.capacity)
        found = occupancy(record, kv_bytes_per_token=rate) if record.requests else None
        if found is not None:
            seen[record.run.trial.trial_id] = found
    return seen


def _rate_of_plain_cache(capacity: KvCapacity | None) -> float | None:
    """Bytes per token where every layer keeps every token; None where blocks have no fixed rate."""
    if capacity is None or any(g.kind not in ("full", "mla") for g in capacity.layer_groups):
        return None
    return capacity.kv_bytes_per_token


def _ledgers(
    records: Sequence[TrialRecord],
    trials: Sequence[TrialAnalysis],
    predictions: Sequence[_Prediction],
) -> tuple[Ledger, ...]:
    """One ledger per variant, of its first launch that ran."""
    found: dict[str, Ledger] = {}
    for record, trial, prediction in zip(records, trials, predictions, strict=True):
        if trial.status in _RAN and trial.variant not in found and trial.summary is not None:
            made = ledger(record, trial.summary, _predicted_memory(record, prediction))
            if made is not None:
                found[trial.variant] = made
    return tuple(found.values())


def _predicted_memory(record: TrialRecord, prediction: _Prediction) -> PredictedMemory:
    count = gpus(record.run.trial.server_flags)
    capacity, weights = prediction.capacity, prediction.weights
    pool = None
    if capacity is not None and capacity.num_blocks is not None:
        pool = capacity.num_blocks * capacity.bytes_per_block * count
    on_cpu = record.run.environment.profile == "cpu"
    return PredictedMemory(
        weights_bytes=None if weights is None else weights.bytes_per_gpu * count,
        kv_pool_bytes=pool,
        other_bytes=repacked_bytes(weights) * count if weights is not None and on_cpu else None,
    )
