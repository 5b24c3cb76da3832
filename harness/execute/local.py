"""Run a scenario on this machine: one server at a time, trial after trial, resumable.

Method: consecutive trials that share a launch share one server. A variant that this device or
engine can't run is skipped with the engine's own reason; a server that fails to start, or dies,
fails its trials and the next launch goes on. A reason that can't change (an unknown flag, a
missing model) is not tried again in later repeats. Ctrl-C stops the server, keeps everything
measured and leaves a run that ``--resume`` completes.

Not covered: what comes before the first launch (``prepare``), and a launch itself (``launch``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from harness.execute import quality
from harness.execute.adaptive import Until, wants_more
from harness.execute.bench import Bench, Turn
from harness.execute.facts import effective_config
from harness.execute.launch import run_launch
from harness.execute.launch_kvpress import KvpressLaunch
from harness.execute.launch_reference import ReferenceLaunch
from harness.execute.launch_vllm import VllmLaunch
from harness.execute.prepare import Wanted, complete_run, models_of, open_bench
from harness.execute.progress import Progress
from harness.execute.served import run_attached
from harness.execute.strategies import check_heads
from harness.scenario import Scenario, Trial, expand, launch_groups
from harness.store import is_sealed


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
    there is not run again; where nothing is left, that run is returned as it is. With ``until``
    more repeats follow those that the scenario states.

    Raises:
        InputError, ModelFetchError, StoreError: nothing could be run.
        KeyboardInterrupt: after the server was stopped and the run marked as interrupted.
    """
    quality.check_inputs(scenario.quality)
    trials = expand(scenario)
    complete = complete_run(scenario, trials, root, progress) if resume and until is None else None
    if complete is not None:
        return complete
    known = models_of(scenario, trials, progress)
    for trial in trials:
        model = known[trial.model]
        check_heads(trial, effective_config(model.config if model else None, trial.flags))
    wanted = Wanted(scenario, tuple(trials), root, tuple(command), resume, load_workers)
    with contextlib.ExitStack() as held:
        bench = open_bench(wanted, known, progress, held)
        _run_all(bench, trials, until)
    return bench.folder


def _run_all(bench: Bench, trials: Sequence[Trial], until: Until | None) -> None:
    # What is done once per machine (fetching the model, measuring the CPU's peaks) lies before.
    began = time.monotonic()
    earlier_s = bench.record.wall_s or 0.0
    status: Literal["finished", "interrupted"] = "interrupted"
    try:
        _run_groups(bench, trials, 0)
        while until is not None and wants_more(bench.folder, until, bench.scenario.repeats):
            _run_groups(bench, bench.add_repeat(), bench.trials_begun)
        bench.spent.quality_s += quality.ask_named_judge(
            bench.folder, bench.scenario, bench.progress
        )
        status = "finished"
    finally:
        try:
            # Whoever came after the last launch began.
            bench.look_for_others()
        finally:
            bench.close(status, earlier_s + time.monotonic() - began)


def _run_groups(bench: Bench, trials: Sequence[Trial], begun: int) -> None:
    groups = launch_groups(trials)
    before = groups[0][0].launch
    for number, group in enumerate(groups, start=before + 1):
        _run_group(bench, group, number, before + len(groups), begun + len(trials))


def _run_group(
    bench: Bench, group: Sequence[Trial], number: int, launches: int, total: int
) -> None:
    pending = tuple(trial for trial in group if not is_sealed(bench.folder, trial.trial_id))
    turn = Turn(group[0], pending, bench.trials_begun, total)
    bench.trials_begun += len(group)
    if not pending and not quality.due(bench.folder, bench.scenario, turn.trial):
        return
    if turn.trial.variant in bench.final_failures:
        skipped, reason = bench.final_failures[turn.trial.variant]
        bench.give_up(pending, reason, skipped=skipped)
        return
    bench.look_for_others()
    bench.progress.launching(group, number, launches)
    _run_turn(bench, turn)


def _run_turn(bench: Bench, turn: Turn) -> None:
    if bench.scenario.attach is not None:
        run_attached(bench, turn)
    elif turn.trial.engine == "kvpress":
        run_launch(KvpressLaunch(bench, turn))
    elif bench.scenario.engine == "reference":
        run_launch(ReferenceLaunch(bench, turn))
    else:
        run_launch(VllmLaunch(bench, turn))
