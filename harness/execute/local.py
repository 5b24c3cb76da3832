"""Run a scenario on this machine: one server at a time, trial after trial, resumable.

Method: consecutive trials that share a launch share one server. A variant that this device or
engine can't run is skipped with the engine's own reason; a server that fails to start, or dies,
fails its trials and the next launch goes on. A reason that can't change (an unknown flag, a
missing model) is not tried again in later repeats. Ctrl-C stops the server, keeps everything
measured and leaves a run that ``--resume`` completes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness import machine
from harness.engines import attached, models, vllm
from harness.engines.ceilings import cpu_ceilings
from harness.engines.kvpress import KvpressEngine, KvpressSpec
from harness.engines.reference import ReferenceEngine
from harness.engines.server_log import cpu_cores
from harness.errors import (
    EngineMissing,
    InputError,
    KvbenchError,
    ModelConfigError,
    ServerStartError,
)
from harness.execute import pressing, quality
from harness.execute.adaptive import Until, wants_more
from harness.execute.alone import Company, announced
from harness.execute.budget import (
    Budget,
    after_baseline,
    baseline_pool_bytes,
    initial_budget,
    pool_flags,
)
from harness.execute.facts import effective_config, read_log, server_facts, trial_facts
from harness.execute.progress import Progress
from harness.execute.reference import reference_facts, reference_spec, run_reference_trial
from harness.execute.strategies import check_heads, refusal
from harness.load import Target
from harness.record import ATTACHED, SCHEMA_VERSION, BenchRecord, Environment, ServerFacts
from harness.run import VISIBLE_DEVICES, Endpoint, run_trial, seal_unplayed
from harness.scenario import Scenario, Trial, expand, launch_groups, slugify
from harness.specs.model import ModelSpec, model_spec
from harness.store import (
    find_unfinished,
    hold_run,
    is_sealed,
    new_run_folder,
    read_manifest,
    server_log,
    write_bench,
)
from harness.telemetry import nvml
from harness.theory.settings import settings_from_flags, with_default_step
from harness.units import Bytes, Seconds, format_bytes
from harness.workload.plan import plan
from harness.workload.tokens import token_range

#: Reasons that a second start can't change.
_FINAL_KINDS = ("unsupported", "flag", "model", "gated", "engine")
#: What a GPU may hold more than before the start and still count as clean.
_CLEAN_TOLERANCE_BYTES: Bytes = 256 << 20
_MEMORY_BACK_LIMIT_S: Seconds = 60.0


@dataclass(slots=True)
class _Bench:
    """The state of one run of a scenario, while it goes on."""

    scenario: Scenario
    folder: Path
    record: BenchRecord
    environment: Environment
    models: dict[str | None, models.ResolvedModel | None]
    budget: Budget
    progress: Progress
    load_workers: int
    final_failures: dict[str, tuple[bool, str]] = field(default_factory=dict)
    startup_s: Seconds = 0.0
    load_s: Seconds = 0.0
    quality_s: Seconds = 0.0
    stop_s: Seconds = 0.0
    trials_begun: int = 0
    company: Company = field(default_factory=lambda: Company(None, None))
    clean_used_bytes: Bytes | None = None

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The device that the profile stands for."""
        return self.scenario.profile


def run_scenario(
    scenario: Scenario,
    *,
    root: Path,
    command: Sequence[str],
    progress: Progress,
    resume: bool = False,
    load_workers: int = 1,
    until: Until | None = None,
) -> Path:
    """Run every trial of a scenario and return the run's folder under ``root``.

    With ``resume`` the latest unfinished run of the very same trials goes on: what is sealed
    there is not run again. With ``until`` more repeats follow those that the scenario states.

    Raises:
        InputError, ModelFetchError, StoreError: nothing could be run.
        KeyboardInterrupt: after the server was stopped and the run marked as interrupted.
    """
    quality.check_inputs(scenario.quality)
    trials = expand(scenario)
    known = _models_of(scenario, trials, progress)
    for trial in trials:
        model = known[trial.model]
        check_heads(trial, effective_config(model.config if model else None, trial.flags))
    with contextlib.ExitStack() as held:
        bench = _open(scenario, trials, known, root, command, progress, resume, load_workers, held)
        _run_all(bench, trials, until)
    return bench.folder


def _run_all(bench: _Bench, trials: Sequence[Trial], until: Until | None) -> None:
    # What is done once per machine (fetching the model, measuring the CPU's peaks) lies before.
    began = time.monotonic()
    earlier_s = bench.record.wall_s or 0.0
    status: Literal["finished", "interrupted"] = "interrupted"
    try:
        _run_groups(bench, trials, 0)
        while until is not None and wants_more(bench.folder, until, bench.scenario.repeats):
            _run_groups(bench, _one_more_repeat(bench), bench.trials_begun)
        bench.quality_s += quality.ask_named_judge(bench.folder, bench.scenario, bench.progress)
        status = "finished"
    finally:
        try:
            # Whoever came after the last launch began.
            _look_for_others(bench)
        finally:
            _close(bench, status, earlier_s + time.monotonic() - began)


def _run_groups(bench: _Bench, trials: Sequence[Trial], begun: int) -> None:
    groups = launch_groups(trials)
    before = groups[0][0].launch
    for number, group in enumerate(groups, start=before + 1):
        _run_group(bench, group, number, before + len(groups), begun + len(trials))


def _one_more_repeat(bench: _Bench) -> tuple[Trial, ...]:
    """Add a block of launches to the run's plan and return its trials."""
    repeats = bench.scenario.repeats + 1
    bench.scenario = bench.scenario.model_copy(update={"repeats": repeats})
    trials = expand(bench.scenario)
    bench.record = dataclasses.replace(
        bench.record,
        trial_ids=tuple(trial.trial_id for trial in trials),
        scenario={**bench.record.scenario, "repeats": repeats},
    )
    write_bench(bench.folder, bench.record)
    return tuple(trial for trial in trials if trial.repeat == repeats - 1)


def _models_of(
    scenario: Scenario, trials: Sequence[Trial], progress: Progress
) -> dict[str | None, models.ResolvedModel | None]:
    """Every model that a trial is served with; variants may name a checkpoint of their own."""
    found: dict[str | None, models.ResolvedModel | None] = {None: None}
    for name in dict.fromkeys(trial.model for trial in trials):
        if name is not None and scenario.attach is not None:
            found[name] = models.describe(name)
        elif name is not None:
            found[name] = models.resolve(name, on_progress=progress.preparing)
    return found


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


def _open(
    scenario: Scenario,
    trials: Sequence[Trial],
    known: dict[str | None, models.ResolvedModel | None],
    root: Path,
    command: Sequence[str],
    progress: Progress,
    resume: bool,
    load_workers: int,
    held: contextlib.ExitStack,
) -> _Bench:
    environment = _environment(scenario, progress)
    trial_ids = tuple(trial.trial_id for trial in trials)
    slug = slugify(scenario.name)
    folder = find_unfinished(root, slug, trial_ids) if resume else None
    if folder is not None:
        # Two that measure into one run would move each other's trials aside.
        held.enter_context(hold_run(folder))
        record = dataclasses.replace(read_manifest(folder), status="started")
    else:
        if resume:
            progress.warn("there is no unfinished run of these trials to resume; starting anew")
        folder = new_run_folder(root, slug)
        held.enter_context(hold_run(folder))
        record = BenchRecord(
            schema_version=SCHEMA_VERSION,
            run_id=folder.name,
            scenario_name=scenario.name,
            scenario=scenario.model_dump(mode="json", by_alias=True),
            environment=environment,
            command=tuple(command),
            trial_ids=trial_ids,
        )
    write_bench(folder, record)
    budget = initial_budget(scenario.kv_budget, scenario.server)
    if not budget.is_known:
        budget = Budget(budget.mode, record.kv_budget_bytes, record.kv_budget_tokens)
    return _Bench(
        scenario,
        folder,
        record,
        environment,
        known,
        budget,
        progress,
        load_workers,
        startup_s=record.server_startup_s or 0.0,
        load_s=record.load_s or 0.0,
        quality_s=record.quality_s or 0.0,
        stop_s=record.server_stop_s or 0.0,
        company=held.enter_context(announced(folder)),
    )


def _close(bench: _Bench, status: Literal["finished", "interrupted"], wall_s: Seconds) -> None:
    write_bench(
        bench.folder,
        dataclasses.replace(
            bench.record,
            status=status,
            wall_s=wall_s,
            server_startup_s=bench.startup_s,
            load_s=bench.load_s,
            quality_s=bench.quality_s if bench.scenario.quality is not None else None,
            server_stop_s=bench.stop_s,
            kv_budget_bytes=bench.budget.value_bytes,
            kv_budget_tokens=bench.budget.value_tokens,
            skipped={
                variant: reason
                for variant, (skipped, reason) in bench.final_failures.items()
                if skipped
            },
        ),
    )


def _run_group(
    bench: _Bench, group: Sequence[Trial], number: int, launches: int, trials: int
) -> None:
    pending = [trial for trial in group if not is_sealed(bench.folder, trial.trial_id)]
    first = bench.trials_begun
    bench.trials_begun += len(group)
    if not pending and not quality.due(bench.folder, bench.scenario, group[0]):
        return
    variant = group[0].variant
    if variant in bench.final_failures:
        skipped, reason = bench.final_failures[variant]
        _give_up(bench, pending, reason, skipped=skipped)
        return
    _look_for_others(bench)
    bench.progress.launching(group, number, launches)
    if bench.scenario.attach is not None:
        _run_attached(bench, pending, first, trials, group[0])
    elif group[0].engine == "kvpress":
        _run_pressed(bench, pending, first, trials)
    elif bench.scenario.engine == "reference":
        _run_reference(bench, pending, first, trials)
    else:
        _run_launched(bench, pending, first, trials, group[0])


def _look_for_others(bench: _Bench) -> None:
    for other in bench.company.look():
        # One that was there before a resumed run was interrupted is known already.
        beside = tuple(dict.fromkeys((*bench.record.beside, other)))
        bench.record = dataclasses.replace(bench.record, beside=beside)
        bench.progress.warn(
            f"another bench is measuring on this machine ({other}): the two share its cores and "
            "memory and spoil each other's speeds; end one of them"
        )


def _run_launched(
    bench: _Bench, group: Sequence[Trial], first: int, trials: int, trial: Trial
) -> None:
    """Start the server that ``trial`` asks for, play ``group`` and the questions, stop it."""
    log_path = server_log(bench.folder, f"{trial.launch:03d}-{slugify(trial.variant)}")
    began = time.monotonic()
    try:
        _check_runnable(bench, trial)
        extra = _pool_flags(bench, trial)
        spec = _spec(bench, trial, extra)
        used_before = _device_used_before(bench, trial)
        server = vllm.Server.launch(
            spec,
            log_path,
            timeout_s=bench.scenario.timeouts.startup_s,
            on_stage=bench.progress.starting,
        )
    except (ServerStartError, InputError) as error:
        bench.startup_s += time.monotonic() - began
        if not group:
            bench.progress.warn(f"no server of {trial.variant} to ask about quality: {error.what}")
            return
        _start_failed(bench, group, error, log_path)
        return
    bench.startup_s += time.monotonic() - began
    try:
        facts = server_facts(
            server,
            engine_version=machine.engine_version(),
            used_before=used_before,
            used_loaded=_device_used(bench, trial),
        )
        bench.progress.healthy(server.startup_s, facts.granted)
        _note_grant(bench, trial, facts)
        endpoint = Endpoint(
            root_url=server.root_url,
            target=Target(
                server.api_url, vllm.SERVED_NAME, None, bench.scenario.timeouts.request_s
            ),
            pid=server.pid,
            log_path=log_path,
            death=server.death,
        )
        with _client_cores(read_log(log_path), bench.progress):
            given_up = _play_all(bench, group, first, trials, facts, endpoint, extra)
            _ask(bench, trial, facts, endpoint, given_up)
    finally:
        bench.progress.stopping()
        bench.stop_s += server.stop() + _await_memory(bench, trial)


def _run_reference(bench: _Bench, group: Sequence[Trial], first: int, trials: int) -> None:
    trial, timeouts = group[0], bench.scenario.timeouts
    log_path = server_log(bench.folder, f"{trial.launch:03d}-{slugify(trial.variant)}")
    began = time.monotonic()
    used_before = _device_used_before(bench, trial)
    try:
        model = bench.models[trial.model]
        if model is None:
            raise InputError("the reference engine needs a model", where="model")
        spec = reference_spec(trial, model)
        engine = ReferenceEngine.launch(
            spec, log_path, timeout_s=timeouts.startup_s, on_stage=bench.progress.starting
        )
    except (ServerStartError, InputError) as error:
        bench.startup_s += time.monotonic() - began
        _start_failed(bench, group, error, log_path)
        return
    bench.startup_s += time.monotonic() - began
    try:
        facts = reference_facts(engine, used_before, _device_used(bench, trial))
        _play_reference(bench, group, first, trials, facts, engine)
    finally:
        bench.progress.stopping()
        bench.stop_s += engine.stop() + _await_memory(bench, trial)


def _play_reference(
    bench: _Bench,
    group: Sequence[Trial],
    first: int,
    trials: int,
    facts: ServerFacts,
    engine: ReferenceEngine,
) -> None:
    for offset, trial in enumerate(group, start=1):
        if (dead := engine.death()) is not None:
            reason = f"ended in an earlier trial: {dead}"
            _give_up(bench, [trial], reason, skipped=False, facts=facts, log=engine.log_path)
            continue
        bench.progress.trial(trial, first + offset, trials)
        began = time.monotonic()
        record = trial_facts(trial, bench.scenario, bench.models[trial.model], {})
        try:
            run = run_reference_trial(
                bench.folder,
                record,
                bench.environment,
                facts,
                engine,
                plan(trial, token_range(record.model_config)),
                timeout_s=bench.scenario.timeouts.request_s,
                on_progress=bench.progress.load,
            )
        finally:
            bench.load_s += time.monotonic() - began
        if run.status != "sealed":
            bench.progress.unplayed(trial, run.status, run.reason or "")


def _run_pressed(bench: _Bench, group: Sequence[Trial], first: int, trials: int) -> None:
    """Have one child measure every policy of kvpress; where none can be, say so and go on."""
    log_path = server_log(bench.folder, f"{group[0].launch:03d}-kvpress")
    began = time.monotonic()
    try:
        if (why := pressing.refusal(bench.scenario)) is not None:
            raise EngineMissing(why)
        _device_used_before(bench, group[0])
        model = bench.models[group[0].model]
        if model is None:
            raise InputError("kvpress needs a model", where="model")
        engine = KvpressEngine.launch(
            KvpressSpec(model.argument, bench.device),
            log_path,
            timeout_s=bench.scenario.timeouts.startup_s,
            on_stage=bench.progress.starting,
        )
    except (ServerStartError, InputError) as error:
        bench.startup_s += time.monotonic() - began
        _no_kvpress(bench, group, error, log_path)
        return
    bench.startup_s += time.monotonic() - began
    try:
        for offset, trial in enumerate(group, start=1):
            bench.progress.trial(trial, first + offset, trials)
            _press(bench, trial, engine)
    finally:
        bench.progress.stopping()
        bench.stop_s += engine.stop() + _await_memory(bench, group[0])


def _no_kvpress(bench: _Bench, group: Sequence[Trial], error: KvbenchError, log_path: Path) -> None:
    skipped = isinstance(error, EngineMissing)
    if skipped:
        bench.final_failures.update({trial.variant: (True, error.told) for trial in group})
    log = log_path if log_path.exists() else None
    _give_up(bench, group, error.told, skipped=skipped, log=log)


def _press(bench: _Bench, trial: Trial, engine: KvpressEngine) -> None:
    began = time.monotonic()
    try:
        run = pressing.run_pressed_trial(
            bench.folder,
            trial_facts(trial, bench.scenario, bench.models[trial.model], {}),
            bench.environment,
            engine,
            timeout_s=bench.scenario.timeouts.request_s,
            progress=bench.progress,
        )
    finally:
        bench.load_s += time.monotonic() - began
    if run.status != "sealed":
        bench.progress.unplayed(trial, run.status, run.reason or "")


def _pool_flags(bench: _Bench, trial: Trial) -> dict[str, Any]:
    if not bench.budget.is_known and not trial.is_baseline:
        raise ServerStartError(
            "the KV budget is what the baseline is granted, and no baseline has started yet",
            next_move="see why the baseline failed, or state a budget: kv_budget: "
            "{equal_bytes: 2GiB}",
            kind="budget",
        )
    model = _spec_of(bench, trial)
    return pool_flags(trial, bench.budget, model, _with_step(bench, trial), bench.device)


def _with_step(bench: _Bench, trial: Trial) -> dict[str, Any]:
    """The trial's flags as theory reads them: with the step that the engine takes on this card."""
    cards = ((gpu.total_bytes, gpu.name) for gpu in bench.record.environment.gpus)
    return with_default_step(trial.flags, bench.device, cards)


def _check_runnable(bench: _Bench, trial: Trial) -> None:
    """Refuse what the engine would start and then not do."""
    if (reason := refusal(trial, bench.device)) is not None:
        raise ServerStartError(reason, kind="unsupported")


def _spec(bench: _Bench, trial: Trial, extra: dict[str, Any]) -> vllm.ServerSpec:
    model = bench.models[trial.model]
    if model is None:
        raise InputError("a scenario that launches servers needs a model", where="model")
    return vllm.ServerSpec(
        model=model.argument,
        flags={**trial.flags, **extra},
        env=trial.env,
        offline=model.offline,
    )


def _spec_of(bench: _Bench, trial: Trial) -> ModelSpec | None:
    """The layout of the trial's model; None where nobody knows it or it is not modelled."""
    model = bench.models[trial.model]
    config = effective_config(model.config if model else None, trial.flags)
    if config is None:
        return None
    with contextlib.suppress(ModelConfigError):
        return model_spec(config, name=trial.model or "model")
    return None


def _note_grant(bench: _Bench, trial: Trial, facts: ServerFacts) -> None:
    if not trial.is_baseline or bench.budget.is_known:
        return
    settings = settings_from_flags(_with_step(bench, trial), bench.device, env=trial.env)
    pool = baseline_pool_bytes(facts.granted, _spec_of(bench, trial), settings)
    bench.budget = after_baseline(bench.budget, facts.granted, pool)
    bench.record = dataclasses.replace(
        bench.record,
        kv_budget_bytes=bench.budget.value_bytes,
        kv_budget_tokens=bench.budget.value_tokens,
    )
    write_bench(bench.folder, bench.record)
    if not bench.budget.is_known:
        bench.progress.warn("the engine does not say how large the baseline's KV pool is")


def _run_attached(
    bench: _Bench, group: Sequence[Trial], first: int, trials: int, trial: Trial
) -> None:
    url = bench.scenario.attach or ""
    api_key = os.environ.get("OPENAI_API_KEY")
    try:
        facts = attached.facts(url, api_key)
    except KvbenchError as error:
        _give_up(bench, group, str(error), skipped=False)
        return
    bench.progress.healthy(None, facts.granted)
    _note_served(bench, trial, facts.served_model)
    endpoint = Endpoint(
        root_url=attached.root_url(url),
        target=Target(url, facts.served_model or "", api_key, bench.scenario.timeouts.request_s),
        pid=None,
        log_path=None,
        death=lambda: None,
    )
    given_up = _play_all(bench, group, first, trials, facts, endpoint, {})
    _ask(bench, trial, facts, endpoint, given_up)


def _note_served(bench: _Bench, trial: Trial, served: str | None) -> None:
    """Let the record name what is served, whatever the scenario thinks is."""
    if trial.model not in (None, served):
        bench.progress.warn(
            f"the server serves {served}, not {trial.model} as the scenario says: the run is "
            "stored as one of the first, and of its configuration nothing is known"
        )
    if bench.record.scenario.get("model") != served:
        bench.record = dataclasses.replace(
            bench.record, scenario={**bench.record.scenario, "model": served}
        )
        write_bench(bench.folder, bench.record)


def _play_all(
    bench: _Bench,
    group: Sequence[Trial],
    first: int,
    trials: int,
    facts: ServerFacts,
    endpoint: Endpoint,
    extra: dict[str, Any],
) -> str | None:
    """Play one trial after the other; returns why the server was given up, if it was."""
    given_up: str | None = None
    for offset, trial in enumerate(group, start=1):
        dead = endpoint.death()
        if dead is not None or given_up is not None:
            how = "died" if given_up is None else "was given up"
            reason = f"the server {how} in an earlier trial: {given_up or dead}"
            _give_up(bench, [trial], reason, skipped=False, facts=facts, log=endpoint.log_path)
            continue
        bench.progress.trial(trial, first + offset, trials)
        began = time.monotonic()
        record = trial_facts(trial, bench.scenario, bench.models[trial.model], extra, facts)
        requests = plan(trial, token_range(record.model_config))
        try:
            run, given_up = run_trial(
                bench.folder,
                record,
                bench.environment,
                facts,
                endpoint,
                requests,
                concurrency=trial.workload.concurrency,
                load_workers=bench.load_workers,
                on_progress=bench.progress.load,
            )
        finally:
            bench.load_s += time.monotonic() - began
        if run.status != "sealed":
            bench.progress.unplayed(trial, run.status, run.reason or "")
    return given_up


def _ask(
    bench: _Bench, trial: Trial, facts: ServerFacts, endpoint: Endpoint, given_up: str | None
) -> None:
    """Put the questions about answer quality that are due to a server whose load is over."""
    if given_up is not None:
        bench.progress.warn(f"{trial.variant} is not asked about quality: {given_up}")
        return
    server = quality.Server(endpoint.target, endpoint.death, facts.log_warnings)
    bench.quality_s += quality.play_due(bench.folder, bench.scenario, trial, server, bench.progress)


def _start_failed(
    bench: _Bench, group: Sequence[Trial], error: KvbenchError, log_path: Path
) -> None:
    kind = error.kind if isinstance(error, ServerStartError) else "flag"
    skipped = kind == "unsupported"
    if kind in _FINAL_KINDS:
        bench.final_failures[group[0].variant] = (skipped, error.told)
    log = log_path if log_path.exists() else None
    _give_up(bench, group, error.told, skipped=skipped, log=log)
    if isinstance(error, EngineMissing):
        raise error


def _give_up(
    bench: _Bench,
    group: Sequence[Trial],
    reason: str,
    *,
    skipped: bool,
    facts: ServerFacts | None = None,
    log: Path | None = None,
) -> None:
    for trial in group:
        run = seal_unplayed(
            bench.folder,
            trial_facts(trial, bench.scenario, bench.models[trial.model], {}, facts),
            bench.environment,
            skipped=skipped,
            reason=reason,
            server=facts,
            log_path=log,
        )
        bench.progress.unplayed(trial, run.status, reason)


def _device_used(bench: _Bench, trial: Trial) -> Bytes | None:
    """Bytes in use on the devices that the trial's server sees; None without a GPU."""
    if not bench.environment.gpus:
        return None
    return nvml.device_used_bytes(visible=trial.env.get(VISIBLE_DEVICES))


def _device_used_before(bench: _Bench, trial: Trial) -> Bytes | None:
    """The same, before a start; the first of a run says what a clean device holds."""
    used = _device_used(bench, trial)
    if bench.clean_used_bytes is None:
        bench.clean_used_bytes = used
    return used


def _await_memory(bench: _Bench, trial: Trial) -> Seconds:
    """Wait until the GPUs hold no more than before the first start; says so if they do not."""
    if not bench.environment.gpus:
        return 0.0
    began = time.monotonic()
    while True:
        used = _device_used(bench, trial)
        waited_s = time.monotonic() - began
        limit = (bench.clean_used_bytes or 0) + _CLEAN_TOLERANCE_BYTES
        if used is None or used <= limit:
            return waited_s
        if waited_s > _MEMORY_BACK_LIMIT_S:
            bench.progress.warn(
                f"the engine is gone but the GPU still holds {format_bytes(used)}; the next start "
                "is not from a clean device"
            )
            return waited_s
        time.sleep(0.5)


@contextlib.contextmanager
def _client_cores(log: str, progress: Progress) -> Iterator[None]:
    """Keep the client off the cores of the engine's threads, where the engine left some."""
    cores = cpu_cores(log)
    if cores is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    free = (before - set(cores[0])) & (set(cores[1]) or before)
    if not free:
        progress.warn("engine and client share their cores: latencies contain the client's work")
        yield
        return
    os.sched_setaffinity(0, free)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
