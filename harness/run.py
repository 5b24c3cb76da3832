"""One trial: telemetry around a load against a running server → a sealed record.

Method: the record is opened (``started``), the sampler takes its first readings, the load is
played, the sampler takes its last ones, the record is sealed. Requests and samples are on disk
as they happen, so a trial that dies keeps what it measured, with the reason. Not covered: who
starts and stops the server (``execute``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.clock import Clock
from harness.errors import every_one_failed
from harness.load import LoadProgress, Target, play
from harness.load.silence import Silence
from harness.record import (
    SCHEMA_VERSION,
    EngineSample,
    Environment,
    PlannedRequest,
    RequestRecord,
    Run,
    Sample,
    ServerFacts,
    TrialFacts,
)
from harness.store import TrialFolder
from harness.telemetry.engine import EngineSource
from harness.telemetry.nvml import NvmlSource
from harness.telemetry.process import ProcessSource, tree_pids
from harness.telemetry.sampler import Sampler
from harness.telemetry.source import Source
from harness.units import Seconds

#: Gets the load's progress and the latest reading of the KV gauge (0–1, None if unknown).
ProgressSink = Callable[[LoadProgress, float | None], None]

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a trial is played: the server's addresses, its process if it is ours, its log.

    ``death`` tells why the server is gone, None while it lives.
    """

    root_url: str
    target: Target
    pid: int | None
    log_path: Path | None
    death: Callable[[], str | None]


def sources_for(
    endpoint: Endpoint, environment: Environment, visible_devices: str | None = None
) -> list[Source]:
    """What can be sampled here: the engine always, our own process tree, NVIDIA devices.

    ``visible_devices`` is the server's own ``CUDA_VISIBLE_DEVICES``, if it was given one.
    """
    sources: list[Source] = [EngineSource(endpoint.root_url)]
    pid = endpoint.pid
    if pid is not None:
        sources.append(ProcessSource(pid))
        if environment.gpus:
            sources.append(NvmlSource.open(lambda: tree_pids(pid), visible=visible_devices))
    return sources


def run_trial(
    run_folder: Path,
    facts: TrialFacts,
    environment: Environment,
    server: ServerFacts,
    endpoint: Endpoint,
    plan: Sequence[PlannedRequest],
    *,
    concurrency: int | None,
    load_workers: int = 1,
    on_progress: ProgressSink = lambda _progress, _kv_usage: None,
) -> tuple[Run, str | None]:
    """Play one trial and seal it; returns what was written, and why the server is given up.

    A server that dies makes the trial ``failed`` with the end of its log, and so does one that is
    up but answers nothing: it is given up. KeyboardInterrupt seals the trial as failed, too, and
    goes on up.

    Raises:
        StoreError: results can't be written.
    """
    load = _ServerLoad(endpoint, plan, concurrency, load_workers, on_progress)
    sources = sources_for(endpoint, environment, server.env.get(VISIBLE_DEVICES))
    started = begin(facts, environment, server)
    run = record_trial(
        run_folder, started, endpoint.log_path, sources, load.play, on_sample=load.see
    )
    return run, load.given_up


def begin(facts: TrialFacts, environment: Environment, server: ServerFacts) -> Run:
    """The record of a trial as it begins, now."""
    return Run(
        schema_version=SCHEMA_VERSION,
        trial=facts,
        environment=environment,
        status="started",
        server=server,
        zero_unix_s=time.time(),
    )


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """How a load ended: the bounds of its measured phase on the trial's clock, and what failed."""

    start_s: Seconds | None
    end_s: Seconds | None
    failure: str | None


def record_trial(
    run_folder: Path,
    started: Run,
    log_path: Path | None,
    sources: Sequence[Source],
    load: Callable[[TrialFolder, Clock], LoadOutcome],
    *,
    on_sample: Callable[[Sample], None] = lambda _sample: None,
) -> Run:
    """Open a trial's record, play ``load`` under telemetry, seal it; the sources are closed.

    Without sources nothing is sampled, and the record says nothing of a sampler.

    Raises:
        StoreError: results can't be written.
        KeyboardInterrupt: after the trial was sealed as failed.
    """
    try:
        with TrialFolder(run_folder, started) as folder:
            link_log(log_path, folder.log_path)
            return _under_telemetry(folder, sources, load, on_sample)
    finally:
        for source in sources:
            source.close()


def _under_telemetry(
    folder: TrialFolder,
    sources: Sequence[Source],
    load: Callable[[TrialFolder, Clock], LoadOutcome],
    on_sample: Callable[[Sample], None],
) -> Run:
    clock = Clock()

    def sample(taken: Sample) -> None:
        folder.append_sample(taken)
        on_sample(taken)

    sampler = Sampler(sources, clock, sample)
    try:
        with sampler:
            played = load(folder, clock)
    except KeyboardInterrupt:
        folder.seal_with(status="failed", reason="interrupted by the user")
        raise
    return folder.seal_with(
        status="failed" if played.failure else "sealed",
        reason=played.failure,
        load_start_s=played.start_s,
        load_end_s=played.end_s,
        sampler_cpu_share=sampler.cpu_share if sources else None,
        sampler_interval_s=sampler.interval_s if sources else None,
        sampler_problems=tuple(
            f"{problem.source}: {problem.count} readings failed; first: {problem.first_message}"
            for problem in sampler.problems
        ),
    )


@dataclass(slots=True)
class _ServerLoad:
    """A plan that is played against a server, and what is noticed on the way."""

    endpoint: Endpoint
    plan: Sequence[PlannedRequest]
    concurrency: int | None
    load_workers: int
    on_progress: ProgressSink
    kv_usage: float | None = None
    given_up: str | None = None

    def see(self, sample: Sample) -> None:
        """Take note of the KV gauge, for the progress line."""
        if isinstance(sample, EngineSample):
            self.kv_usage = sample.kv_cache_usage

    def play(self, folder: TrialFolder, clock: Clock) -> LoadOutcome:
        """Play everything, or as far as the server answers."""
        errors: list[str] = []
        silence = Silence(self.endpoint.target.timeout_s)

        def keep(record: RequestRecord) -> None:
            folder.append_request(record)
            silence.take(record)
            if record.phase == "measured" and record.error is not None:
                errors.append(record.error)

        def tell(progress: LoadProgress) -> None:
            silence.see(progress)
            self.on_progress(progress, self.kv_usage)

        outcome = play(
            self.plan,
            self.endpoint.target,
            concurrency=self.concurrency,
            clock=clock,
            on_record=keep,
            on_sample=folder.append_sample,
            on_progress=tell,
            should_stop=lambda: self.endpoint.death() or silence.reason,
            load_workers=self.load_workers,
        )
        self.given_up = silence.reason
        failure = outcome.stopped_early or silence.reason or all_failed(errors, self.plan)
        return LoadOutcome(outcome.load_start_s, outcome.load_end_s, failure)


def all_failed(errors: Sequence[str], plan: Sequence[PlannedRequest]) -> str | None:
    """Why a load counts as failed of which every measured request did; None if one did not."""
    return every_one_failed("request", errors, sum(r.phase == "measured" for r in plan))


def link_log(source: Path | None, place: Path) -> None:
    """Let the trial's folder hold the server's whole log, which is still growing."""
    if source is None:
        return
    try:
        os.link(source, place)
    except OSError:
        # Some file systems know no hard links; a symbolic one stays inside the run's folder.
        place.symlink_to(os.path.relpath(source, place.parent))


def seal_unplayed(
    run_folder: Path,
    facts: TrialFacts,
    environment: Environment,
    *,
    skipped: bool,
    reason: str,
    server: ServerFacts | None = None,
    log_path: Path | None = None,
) -> Run:
    """Record a trial that could not be played: ``skipped`` (can't be here) or ``failed``."""
    run = Run(
        schema_version=SCHEMA_VERSION,
        trial=facts,
        environment=environment,
        status="started",
        server=server,
    )
    with TrialFolder(run_folder, run) as folder:
        link_log(log_path, folder.log_path)
        return folder.seal_with(status="skipped" if skipped else "failed", reason=reason)
