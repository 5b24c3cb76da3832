"""What a scenario would do, without doing it: every trial, its command line, its predicted KV.

Nothing is launched and no GPU is asked; the model's configuration comes from the package, the
model's folder or the hub. Where the pool depends on what the machine grants, the prediction is
unknown and says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.analysis.compare import NO_POOL
from harness.engines import kvpress, models, reference, vllm
from harness.errors import ModelConfigError
from harness.execute import kvpress_trials
from harness.execute.budget import KvBudgetState, after_baseline, initial_budget, pool_flags
from harness.execute.facts import effective_config
from harness.execute.strategies import check_heads, refusal
from harness.record import GrantedKv
from harness.scenario import Scenario, Trial, expand
from harness.specs.model import ModelSpec, model_spec
from harness.specs.requested_pool import POOL_FLAG, requested_pool_bytes
from harness.theory.capacity import (
    EngineSettings,
    KvCapacity,
    predict_capacity,
    settings_from_flags,
)

#: Stands in a planned command line where a start chooses a free port.
PORT_PLACEHOLDER = 0


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """One trial as it would be run; ``capacity`` is None with a reason where it is unknown."""

    trial: Trial
    command: tuple[str, ...]
    capacity: KvCapacity | None
    capacity_reason: str | None


def outline(scenario: Scenario) -> tuple[PlannedTrial, ...]:
    """Resolve every trial of a scenario."""
    budget = initial_budget(scenario.kv_budget, scenario.server)
    trials = expand(scenario)
    names = dict.fromkeys(trial.model for trial in trials)
    known = {name: None if name is None else models.describe(name) for name in names}
    if not budget.is_known:
        budget = _from_baseline(budget, scenario, trials, known)
    return tuple(_planned(scenario, trial, known[trial.model], budget) for trial in trials)


def _from_baseline(
    budget: KvBudgetState,
    scenario: Scenario,
    trials: Sequence[Trial],
    known: Mapping[str | None, models.ResolvedModel | None],
) -> KvBudgetState:
    """What the baseline would be granted, if its own flags say so."""
    baseline = next(trial for trial in trials if trial.is_baseline)
    pool = requested_pool_bytes(baseline.flags, baseline.env, _device(scenario))
    spec, _ = _model(baseline, known[baseline.model])
    if pool is None or spec is None:
        return budget
    capacity = predict_capacity(spec, _settings(scenario, baseline, {}), pool)
    return after_baseline(budget, GrantedKv(kv_cache_tokens=capacity.kv_cache_tokens), pool)


def _planned(
    scenario: Scenario, trial: Trial, model: models.ResolvedModel | None, budget: KvBudgetState
) -> PlannedTrial:
    if trial.engine == "reference":
        return PlannedTrial(trial, reference.command(), None, NO_POOL)
    if trial.engine == "kvpress":
        refused = kvpress_trials.refusal(scenario)
        why = f"will be skipped: {refused}" if refused else NO_POOL
        return PlannedTrial(trial, kvpress.command(), None, why)
    spec, reason = _model(trial, model)
    extra = _extra_flags(scenario, trial, spec, budget)
    command: tuple[str, ...] = ()
    if scenario.attach is None and model is not None:
        server = vllm.ServerSpec(model.argument, {**trial.flags, **extra}, trial.env, model.offline)
        command = vllm.server_command(server, PORT_PLACEHOLDER)
    if spec is None:
        return PlannedTrial(trial, command, None, reason)
    return _with_capacity(scenario, trial, command, spec, extra)


def _extra_flags(
    scenario: Scenario, trial: Trial, spec: ModelSpec | None, budget: KvBudgetState
) -> dict[str, object]:
    """The flags that kvbench adds: the pool, and what stands in for an emulated strategy."""
    if spec is None:
        return {} if budget.value_bytes is None else {POOL_FLAG: budget.value_bytes}
    return pool_flags(trial, budget, spec, trial.flags, _device(scenario))


def _with_capacity(
    scenario: Scenario,
    trial: Trial,
    command: tuple[str, ...],
    spec: ModelSpec,
    extra: dict[str, object],
) -> PlannedTrial:
    pool = requested_pool_bytes({**trial.flags, **extra}, trial.env, _device(scenario))
    refused = refusal(trial, _device(scenario))
    skipped = None if refused is None else f"will be skipped: {refused}"
    try:
        settings = _settings(scenario, trial, extra)
        capacity = predict_capacity(spec, settings, pool)
    except ModelConfigError as error:
        known = "; ".join(text for text in (error.what, skipped) if text is not None)
        return PlannedTrial(trial, command, None, known)
    reason = None if pool is not None else "the pool is what the machine's memory leaves"
    return PlannedTrial(trial, command, capacity, skipped or reason)


def _model(trial: Trial, model: models.ResolvedModel | None) -> tuple[ModelSpec | None, str | None]:
    config = effective_config(model.config if model else None, trial.flags)
    check_heads(trial, config)
    if config is None:
        return None, "the model's configuration is not known here"
    try:
        return model_spec(config, name=trial.model or "model"), None
    except ModelConfigError as error:
        return None, error.what


def _settings(scenario: Scenario, trial: Trial, extra: Mapping[str, object]) -> EngineSettings:
    return settings_from_flags({**trial.flags, **extra}, _device(scenario), env=trial.env)


def _device(scenario: Scenario) -> Literal["cpu", "cuda"]:
    return scenario.profile
