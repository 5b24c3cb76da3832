"""The KV pool of each launch: equal bytes, equal tokens, or the engine's own choice.

The budget is what the scenario states or, failing that, what the baseline was granted at its
first launch; from then on every launch, the baseline's later ones too, is handed that budget
through ``--kv-cache-memory-bytes``. Equal tokens become bytes through the theory of each
variant's layout, so they can't be had for a model whose layout is not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.errors import ScenarioError
from harness.execute.strategies import emulation_flags
from harness.record import GrantedKv
from harness.scenario import KvBudget, Trial
from harness.specs.model import ModelSpec
from harness.specs.requested_pool import POOL_FLAG, requested_pool_bytes
from harness.theory.capacity import kv_memory_for_tokens
from harness.theory.settings import EngineSettings, settings_from_flags
from harness.units import Bytes, Tokens


@dataclass(frozen=True, slots=True)
class KvBudgetState:
    """The budget as known so far; both values are None until it is stated or granted."""

    mode: Literal["equal_bytes", "equal_tokens", "engine"]
    value_bytes: Bytes | None = None
    value_tokens: Tokens | None = None

    @property
    def is_known(self) -> bool:
        """Whether a launch can be given its pool (``engine`` needs none)."""
        return self.mode == "engine" or (self.value_bytes, self.value_tokens) != (None, None)


def initial_budget(stated: KvBudget, server_flags: Mapping[str, Any]) -> KvBudgetState:
    """The budget before any launch; ``server.kv_cache_memory_bytes`` counts as stated."""
    value_bytes = stated.value_bytes
    if stated.mode == "equal_bytes" and value_bytes is None:
        given = server_flags.get(POOL_FLAG)
        value_bytes = given if isinstance(given, int) else None
    return KvBudgetState(stated.mode, value_bytes, stated.value_tokens)


def budget_flags(
    budget: KvBudgetState,
    flags: Mapping[str, Any],
    model: ModelSpec | None,
    device: Literal["cpu", "cuda"],
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The flags that hand a launch its pool; empty where the engine is to choose.

    Raises:
        ScenarioError: equal tokens were asked for, and the model's layout is not modelled.
    """
    if budget.mode == "engine" or not budget.is_known:
        return {}
    if budget.mode == "equal_bytes":
        return {POOL_FLAG: budget.value_bytes}
    if model is None or budget.value_tokens is None:
        raise ScenarioError(
            "equal_tokens needs the KV layout of the model, and it is not known",
            where="kv_budget",
            legal=["equal_bytes", "engine"],
        )
    settings = settings_from_flags(flags, device, env=env)
    return {POOL_FLAG: kv_memory_for_tokens(model, settings, budget.value_tokens)}


def pool_flags(
    trial: Trial,
    budget: KvBudgetState,
    model: ModelSpec | None,
    flags: Mapping[str, Any],
    device: Literal["cpu", "cuda"],
) -> dict[str, Any]:
    """What kvbench adds to a launch: its pool, and what an emulated strategy makes of that pool.

    ``flags`` are the trial's, with the step that the engine takes where that is known.

    Raises:
        ScenarioError: as ``budget_flags`` and ``emulation_flags``.
    """
    extra = budget_flags(budget, flags, model, device, trial.env)
    planned = {**flags, **extra}
    pool = requested_pool_bytes(planned, trial.env, device)
    return extra | emulation_flags(trial, planned, model, pool, device)


def after_baseline(
    budget: KvBudgetState, granted: GrantedKv, pool_bytes: Bytes | None
) -> KvBudgetState:
    """The budget once the baseline has been granted its pool."""
    if budget.is_known:
        return budget
    if budget.mode == "equal_tokens":
        return KvBudgetState(budget.mode, value_tokens=granted.kv_cache_tokens)
    return KvBudgetState(budget.mode, value_bytes=pool_bytes)


def baseline_pool_bytes(
    granted: GrantedKv, model: ModelSpec | None, settings: EngineSettings
) -> Bytes | None:
    """Bytes of the granted pool: as the engine reports them, else its blocks × their size."""
    if granted.kv_cache_memory_bytes is not None:
        return granted.kv_cache_memory_bytes
    if model is None or granted.kv_cache_tokens is None:
        return None
    return kv_memory_for_tokens(model, settings, granted.kv_cache_tokens)
