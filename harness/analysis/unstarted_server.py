"""What a server that never started would have been given: its pool and its environment.

Method: a trial that was skipped, or whose server did not come up, has no server to ask; the run
says what the launch was to be handed. The bytes are those of the stated budget, or those that the
baseline was granted and the others were to match; with equal tokens, what so many tokens take.
Theory then speaks of the variant as it would of any other, and the figures are modelled. Not
covered: budgets that the engine was to choose.
"""

from __future__ import annotations

from harness.record import BenchRecord, Run
from harness.scenario.schema import stored_settings
from harness.specs.model import ModelSpec
from harness.specs.requested_pool import requested_pool_bytes
from harness.theory.capacity import kv_memory_for_tokens
from harness.theory.settings import EngineSettings
from harness.units import Bytes


def stated_env(bench: BenchRecord, run: Run) -> dict[str, str]:
    """The environment that the variant asks for, by the run's own scenario."""
    _, env = stored_settings(bench.scenario, run.trial.variant)
    return env


def stated_pool(
    bench: BenchRecord, run: Run, model: ModelSpec, settings: EngineSettings
) -> Bytes | None:
    """Bytes of the pool that a launch was to be handed; None where nobody had said."""
    env = stated_env(bench, run)
    own = requested_pool_bytes(run.trial.server_flags, env, settings.device)
    if own is not None:
        return own
    mode = run.trial.kv_budget.get("mode")
    if mode == "equal_bytes":
        return bench.kv_budget_bytes
    if mode == "equal_tokens" and bench.kv_budget_tokens is not None:
        return kv_memory_for_tokens(model, settings, bench.kv_budget_tokens)
    return None
