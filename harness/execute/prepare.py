"""Everything that a run needs before its first launch: models, environment, folder, budget.

Method: models are fetched and the CPU's peaks measured once per machine, with a word to whoever
waits. With ``resume`` the latest unfinished run of the very same trials is taken up (one that
lacks its report alone needs nothing of all this), else a new folder is made; either is held
against a second bench that would write into it, and others on this machine are told that this one
measures.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import machine
from harness.engines import models
from harness.engines.ceilings import cpu_ceilings
from harness.execute.bench import Bench, Spent
from harness.execute.budget import KvBudgetState, initial_budget
from harness.execute.device_memory import DeviceMemory
from harness.execute.other_benches import announced
from harness.execute.progress import Progress
from harness.record import ATTACHED, SCHEMA_VERSION, BenchRecord, Environment
from harness.scenario import Scenario, Trial, slugify
from harness.store import (
    find_complete,
    find_unfinished,
    hold_run,
    new_run_folder,
    read_manifest,
    write_bench,
)

Models = Mapping[str | None, models.ResolvedModel | None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run as it was asked for: ``command`` is what was typed, ``root`` where runs are stored."""

    scenario: Scenario
    trials: tuple[Trial, ...]
    root: Path
    command: tuple[str, ...]
    resume: bool
    load_workers: int


def models_of(scenario: Scenario, trials: Sequence[Trial], progress: Progress) -> Models:
    """Every model that a trial is served with; variants may name a checkpoint of their own.

    Raises:
        InputError, ModelFetchError: a model is not to be had.
    """
    found: dict[str | None, models.ResolvedModel | None] = {None: None}
    for name in dict.fromkeys(trial.model for trial in trials):
        if name is not None and scenario.attach is not None:
            found[name] = models.describe(name)
        elif name is not None:
            found[name] = models.resolve(name, on_progress=progress.preparing)
    return found


def complete_run(
    scenario: Scenario, trials: Sequence[Trial], root: Path, progress: Progress
) -> Path | None:
    """The latest run of these trials if all is measured; what was killed after that is closed.

    Raises:
        StoreError: the run can't be read or written, or another bench holds it.
    """
    trial_ids = tuple(trial.trial_id for trial in trials)
    folder = find_complete(root, slugify(scenario.name), trial_ids)
    if folder is None:
        return None
    with hold_run(folder):
        record = read_manifest(folder)
        if record.status != "finished":
            write_bench(folder, dataclasses.replace(record, status="finished"))
    progress.warn(
        f"nothing is left to measure of {folder.name}, the latest run of these trials; it is "
        "reported as it is (without --resume all is measured anew)"
    )
    return folder


def open_bench(
    wanted: Wanted, known: Models, progress: Progress, held: contextlib.ExitStack
) -> Bench:
    """Begin a run, or take one up; what it holds on to is let go when ``held`` is closed.

    Raises:
        StoreError: the run can't be read, written, or another bench holds it.
    """
    environment = _environment(wanted.scenario, progress)
    folder, record = _folder(wanted, environment, progress, held)
    write_bench(folder, record)
    return Bench(
        scenario=wanted.scenario,
        folder=folder,
        record=record,
        environment=environment,
        models=known,
        budget=_budget(wanted.scenario, record),
        progress=progress,
        load_workers=wanted.load_workers,
        other_benches=held.enter_context(announced(folder)),
        memory=DeviceMemory(environment, progress),
        spent=Spent(
            startup_s=record.server_startup_s or 0.0,
            load_s=record.load_s or 0.0,
            quality_s=record.quality_s or 0.0,
            stop_s=record.server_stop_s or 0.0,
        ),
    )


def _environment(scenario: Scenario, progress: Progress) -> Environment:
    """This machine; where vLLM is to run on its CPU, with what that CPU does at best."""
    found = machine.describe(scenario.profile)
    if scenario.attach is not None:
        # The client's GPUs are none of the server's.
        return dataclasses.replace(found, profile=ATTACHED, gpus=())
    if scenario.profile != "cpu" or scenario.engine != "vllm":
        return found
    progress.preparing("looking up what this CPU can do at best (measured once, some seconds)")
    name = f"{found.cpu or 'unknown CPU'}, {found.cpu_cores} cores"
    return dataclasses.replace(found, cpu_peaks=cpu_ceilings(name))


def _folder(
    wanted: Wanted, environment: Environment, progress: Progress, held: contextlib.ExitStack
) -> tuple[Path, BenchRecord]:
    """The run's folder and manifest: those of an unfinished run, or new ones."""
    trial_ids = tuple(trial.trial_id for trial in wanted.trials)
    slug = slugify(wanted.scenario.name)
    folder = find_unfinished(wanted.root, slug, trial_ids) if wanted.resume else None
    if folder is not None:
        # Two that measure into one run would move each other's trials aside.
        held.enter_context(hold_run(folder))
        return folder, dataclasses.replace(read_manifest(folder), status="started")
    if wanted.resume:
        progress.warn("there is no unfinished run of these trials to resume; starting anew")
    folder = new_run_folder(wanted.root, slug)
    held.enter_context(hold_run(folder))
    record = BenchRecord(
        schema_version=SCHEMA_VERSION,
        run_id=folder.name,
        scenario_name=wanted.scenario.name,
        scenario=wanted.scenario.model_dump(mode="json", by_alias=True),
        environment=environment,
        command=wanted.command,
        trial_ids=trial_ids,
    )
    return folder, record


def _budget(scenario: Scenario, record: BenchRecord) -> KvBudgetState:
    """The stated budget, else what an interrupted run's baseline was granted, if anything."""
    budget = initial_budget(scenario.kv_budget, scenario.server)
    if budget.is_known:
        return budget
    return KvBudgetState(budget.mode, record.kv_budget_bytes, record.kv_budget_tokens)
