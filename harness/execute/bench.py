"""One run of a scenario while it goes on: what is known, what is stored, what is given up.

Method: a value per run that the launches share. It knows the models and the KV budget, adds up
where the time went, seals the trials that can't be played, and writes the run's manifest whenever
something in it is settled. Not covered: the order of launches (``local``) and the engines
(``launch``, ``served``).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.engines.models import ResolvedModel
from harness.errors import (
    EngineMissing,
    InputError,
    KvbenchError,
    ModelConfigError,
    ServerStartError,
)
from harness.execute.budget import KvBudgetState, after_baseline, baseline_pool_bytes, pool_flags
from harness.execute.device_memory import DeviceMemory
from harness.execute.facts import effective_config, trial_facts
from harness.execute.other_benches import OtherBenches
from harness.execute.progress import Progress
from harness.record import BenchRecord, Environment, ServerFacts, TrialFacts
from harness.run import seal_unplayed
from harness.scenario import Scenario, Trial, expand
from harness.specs.model import ModelSpec, model_spec
from harness.store import write_bench
from harness.theory.settings import settings_from_flags, with_default_step
from harness.units import Seconds

#: Reasons that a second start can't change.
_FINAL_KINDS = ("unsupported", "flag", "model", "gated", "engine")


@dataclass(frozen=True, slots=True)
class Turn:
    """The trials of one launch that are still to be played, and their place in the run.

    ``trial`` is the launch's first one, played or not: the one that the server is started for.
    ``first`` trials of ``total`` lie before.
    """

    trial: Trial
    pending: tuple[Trial, ...]
    first: int
    total: int

    def numbered(self) -> Iterator[tuple[int, Trial]]:
        """The trials with their numbers, from 1."""
        return enumerate(self.pending, start=self.first + 1)


@dataclass(slots=True)
class Spent:
    """Where the wall time of a run went so far, resumed parts included."""

    startup_s: Seconds = 0.0
    load_s: Seconds = 0.0
    quality_s: Seconds = 0.0
    stop_s: Seconds = 0.0


@dataclass(slots=True)
class Bench:
    """The state of one run of a scenario; ``final_failures`` are (skipped, reason) by variant."""

    scenario: Scenario
    folder: Path
    record: BenchRecord
    environment: Environment
    models: Mapping[str | None, ResolvedModel | None]
    budget: KvBudgetState
    progress: Progress
    load_workers: int
    other_benches: OtherBenches
    memory: DeviceMemory
    spent: Spent
    final_failures: dict[str, tuple[bool, str]] = field(default_factory=dict)
    trials_begun: int = 0

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The device that the profile stands for."""
        return self.scenario.profile

    def store(self, **changes: Any) -> None:
        """Change the run's manifest and write it."""
        self.record = dataclasses.replace(self.record, **changes)
        write_bench(self.folder, self.record)

    def close(self, status: Literal["finished", "interrupted"], wall_s: Seconds) -> None:
        """Write the manifest of a run that ends."""
        asked = self.scenario.quality is not None
        self.store(
            status=status,
            wall_s=wall_s,
            server_startup_s=self.spent.startup_s,
            load_s=self.spent.load_s,
            quality_s=self.spent.quality_s if asked else None,
            server_stop_s=self.spent.stop_s,
            kv_budget_bytes=self.budget.value_bytes,
            kv_budget_tokens=self.budget.value_tokens,
            skipped={
                variant: reason
                for variant, (skipped, reason) in self.final_failures.items()
                if skipped
            },
        )

    def add_repeat(self) -> tuple[Trial, ...]:
        """Add a block of launches to the run's plan and return its trials."""
        repeats = self.scenario.repeats + 1
        self.scenario = self.scenario.model_copy(update={"repeats": repeats})
        trials = expand(self.scenario)
        self.store(
            trial_ids=tuple(trial.trial_id for trial in trials),
            scenario={**self.record.scenario, "repeats": repeats},
        )
        return tuple(trial for trial in trials if trial.repeat == repeats - 1)

    def look_for_others(self) -> None:
        """Record and tell who else has begun to measure on this machine."""
        for other in self.other_benches.look():
            # One that was there before a resumed run was interrupted is known already.
            beside = tuple(dict.fromkeys((*self.record.beside, other)))
            self.record = dataclasses.replace(self.record, beside=beside)
            self.progress.warn(
                f"another bench is measuring on this machine ({other}): the two share its cores "
                "and memory and spoil each other's speeds; end one of them"
            )

    # --- the model and its pool -------------------------------------------------------------------

    def model_for(self, trial: Trial, who: str) -> ResolvedModel:
        """The model that the trial is served with.

        Raises:
            InputError: the scenario names none, and ``who`` needs one.
        """
        model = self.models[trial.model]
        if model is None:
            raise InputError(f"{who} needs a model", where="model")
        return model

    def facts_of(
        self, trial: Trial, extra: Mapping[str, Any], server: ServerFacts | None = None
    ) -> TrialFacts:
        """The trial in plain values, as it is stored."""
        return trial_facts(trial, self.scenario, self.models[trial.model], extra, server)

    def pool_flags(self, trial: Trial) -> dict[str, Any]:
        """What kvbench adds to the launch of a trial.

        Raises:
            ServerStartError: the pool is the baseline's, and no baseline has started yet.
            ScenarioError: the layout or the pool must be known for it, and is not.
        """
        if not self.budget.is_known and not trial.is_baseline:
            raise ServerStartError(
                "the KV budget is what the baseline is granted, and no baseline has started yet",
                next_move="see why the baseline failed, or state a budget: kv_budget: "
                "{equal_bytes: 2GiB}",
                kind="budget",
            )
        flags = self._with_step(trial)
        return pool_flags(trial, self.budget, self._layout(trial), flags, self.device)

    def note_grant(self, trial: Trial, facts: ServerFacts) -> None:
        """Take the baseline's granted pool for the budget, where none is stated."""
        if not trial.is_baseline or self.budget.is_known:
            return
        settings = settings_from_flags(self._with_step(trial), self.device, env=trial.env)
        pool = baseline_pool_bytes(facts.granted, self._layout(trial), settings)
        self.budget = after_baseline(self.budget, facts.granted, pool)
        self.store(
            kv_budget_bytes=self.budget.value_bytes, kv_budget_tokens=self.budget.value_tokens
        )
        if not self.budget.is_known:
            self.progress.warn("the engine does not say how large the baseline's KV pool is")

    def _with_step(self, trial: Trial) -> dict[str, Any]:
        """The flags as theory reads them: with the step that the engine takes on this card."""
        cards = ((gpu.total_bytes, gpu.name) for gpu in self.record.environment.gpus)
        return with_default_step(trial.flags, self.device, cards)

    def _layout(self, trial: Trial) -> ModelSpec | None:
        """The layout of the trial's model; None where nobody knows it or it is not modelled."""
        model = self.models[trial.model]
        config = effective_config(model.config if model else None, trial.flags)
        if config is None:
            return None
        with contextlib.suppress(ModelConfigError):
            return model_spec(config, name=trial.model or "model")
        return None

    # --- what can't be played ---------------------------------------------------------------------

    def start_failed(self, group: Sequence[Trial], error: KvbenchError, log: Path) -> None:
        """Give up the trials of a launch, and later ones of its variant if nothing can change it.

        Raises:
            EngineMissing: no launch of this engine can ever start.
        """
        kind = error.kind if isinstance(error, ServerStartError) else "flag"
        skipped = kind == "unsupported"
        if kind in _FINAL_KINDS:
            self.final_failures[group[0].variant] = (skipped, error.told)
        self.give_up(group, error.told, skipped=skipped, log=log if log.exists() else None)
        if isinstance(error, EngineMissing):
            raise error

    def give_up(
        self,
        group: Sequence[Trial],
        reason: str,
        *,
        skipped: bool,
        facts: ServerFacts | None = None,
        log: Path | None = None,
    ) -> None:
        """Seal trials that were never played, with the reason and the server's log, if any."""
        for trial in group:
            run = seal_unplayed(
                self.folder,
                self.facts_of(trial, {}, facts),
                self.environment,
                skipped=skipped,
                reason=reason,
                server=facts,
                log_path=log,
            )
            self.progress.unplayed(trial, run.status, reason)
