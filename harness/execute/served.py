"""Trials and questions played against a server, whether it was launched here or attached to.

Method: one trial after the other, then the questions about answer quality that are due. A server
that died or was given up in one trial is not asked again: the rest of its launch is sealed with
the reason. An attached server names itself what it serves, and the run is stored as one of that.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from harness.engines import attached
from harness.errors import KvbenchError
from harness.execute import quality
from harness.execute.bench import Bench, Turn
from harness.load import Target
from harness.record import Run, ServerFacts
from harness.run import Endpoint, run_trial
from harness.scenario import Trial
from harness.workload.plan import plan
from harness.workload.tokens import token_range


@dataclass(frozen=True, slots=True)
class Served:
    """A healthy server, how it is reached, and the flags that kvbench added to its launch."""

    facts: ServerFacts
    endpoint: Endpoint
    extra: dict[str, Any]


def play_served(bench: Bench, turn: Turn, server: Served) -> None:
    """Play the turn's trials and put the questions that are due."""
    given_up: str | None = None
    for number, trial in turn.numbered():
        dead = server.endpoint.death()
        if dead is not None or given_up is not None:
            how = "died" if given_up is None else "was given up"
            reason = f"the server {how} in an earlier trial: {given_up or dead}"
            log = server.endpoint.log_path
            bench.give_up([trial], reason, skipped=False, facts=server.facts, log=log)
            continue
        bench.progress.trial(trial, number, turn.total)
        run, given_up = _play(bench, trial, server)
        if run.status != "sealed":
            bench.progress.unplayed(trial, run.status, run.reason or "")
    _ask(bench, turn.trial, server, given_up)


def _play(bench: Bench, trial: Trial, server: Served) -> tuple[Run, str | None]:
    """One trial; the second value says why the server was given up, if it was."""
    began = time.monotonic()
    record = bench.facts_of(trial, server.extra, server.facts)
    requests = plan(trial, token_range(record.model_config))
    try:
        return run_trial(
            bench.folder,
            record,
            bench.environment,
            server.facts,
            server.endpoint,
            requests,
            concurrency=trial.workload.concurrency,
            load_workers=bench.load_workers,
            on_progress=bench.progress.load,
        )
    finally:
        bench.spent.load_s += time.monotonic() - began


def _ask(bench: Bench, trial: Trial, server: Served, given_up: str | None) -> None:
    """Put the questions about answer quality that are due to a server whose load is over."""
    if given_up is not None:
        bench.progress.warn(f"{trial.variant} is not asked about quality: {given_up}")
        return
    endpoint = server.endpoint
    asked = quality.QuestionedServer(endpoint.target, endpoint.death, server.facts.log_warnings)
    bench.spent.quality_s += quality.play_due(
        bench.folder, bench.scenario, trial, asked, bench.progress
    )


def run_attached(bench: Bench, turn: Turn) -> None:
    """Measure the server that the scenario names; one that does not answer fails the trials."""
    url = bench.scenario.attach or ""
    api_key = os.environ.get("OPENAI_API_KEY")
    try:
        facts = attached.facts(url, api_key)
    except KvbenchError as error:
        bench.give_up(turn.pending, str(error), skipped=False)
        return
    bench.progress.healthy(None, facts.granted)
    _note_served(bench, turn.trial, facts.served_model)
    endpoint = Endpoint(
        root_url=attached.root_url(url),
        target=Target(url, facts.served_model or "", api_key, bench.scenario.timeouts.request_s),
        pid=None,
        log_path=None,
        death=lambda: None,
    )
    play_served(bench, turn, Served(facts, endpoint, {}))


def _note_served(bench: Bench, trial: Trial, served: str | None) -> None:
    """Let the record name what is served, whatever the scenario thinks is."""
    if trial.model not in (None, served):
        bench.progress.warn(
            f"the server serves {served}, not {trial.model} as the scenario says: the run is "
            "stored as one of the first, and of its configuration nothing is known"
        )
    if bench.record.scenario.get("model") != served:
        bench.store(scenario={**bench.record.scenario, "model": served})
