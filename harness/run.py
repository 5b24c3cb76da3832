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
from dataclasses import dataclass, field
from pathlib import Path

from harness.clock import Clock
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
from harness.store import LOG_FILE, TrialFolder
from harness.telemetry.engine import EngineSource
from harness.telemetry.nvml import NvmlSource
from harness.telemetry.process import ProcessSource, tree_pids
from harness.telemetry.sampler import Sampler
from harness.telemetry.source import Source

#: Gets the load's progress and the latest reading of the KV gauge (0–1, None if unknown).
ProgressSink = Callable[[LoadProgress, float | None], None]

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a trial is played: the server's addresses, its process if it is ours, its log.

    ``death`` tells why the server is gone (None while it lives); ``given_up`` holds why it is
    not asked any more though it lives.
    """

    root_url: str
    target: Target
    pid: int | None
    log_path: Path | None
    death: Callable[[], str | None]
    given_up: list[str] = field(default_factory=list)

    def lost(self) -> str | None:
        """Why nothing more can be asked of this server; None while it can."""
        return self.death() or (self.given_up[0] if self.given_up else None)


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
) -> Run:
    """Play one trial and seal it; returns what was written.

    A server that dies makes the trial ``failed`` with the end of its log, and so does one that is
    up but answers nothing, which is then noted in ``endpoint.given_up``. KeyboardInterrupt seals
    the trial as failed, too, and goes on up.

    Raises:
        StoreError: results can't be written.
    """
    started = Run(
        schema_version=SCHEMA_VERSION,
        trial=facts,
        environment=environment,
        status="started",
        server=server,
        zero_unix_s=time.time(),
    )
    sources = sources_for(endpoint, environment, server.env.get(VISIBLE_DEVICES))
    try:
        with TrialFolder(run_folder, started) as folder:
            link_log(endpoint.log_path, folder.path / LOG_FILE)
            return _measure(folder, endpoint, plan, sources, concurrency, load_workers, on_progress)
    finally:
        for source in sources:
            source.close()


def _measure(
    folder: TrialFolder,
    endpoint: Endpoint,
    plan: Sequence[PlannedRequest],
    sources: Sequence[Source],
    concurrency: int | None,
    load_workers: int,
    on_progress: ProgressSink,
) -> Run:
    clock = Clock()
    errors: list[str] = []
    kv_usage: list[float | None] = [None]
    silence = Silence(endpoint.target.timeout_s)

    def sample(taken: Sample) -> None:
        folder.append_sample(taken)
        if isinstance(taken, EngineSample):
            kv_usage[0] = taken.kv_cache_usage

    sampler = Sampler(sources, clock, sample)

    def keep(record: RequestRecord) -> None:
        folder.append_request(record)
        silence.take(record)
        if record.phase == "measured" and record.error is not None:
            errors.append(record.error)

    def tell(progress: LoadProgress) -> None:
        silence.see(progress)
        on_progress(progress, kv_usage[0])

    try:
        with sampler:
            outcome = play(
                plan,
                endpoint.target,
                concurrency=concurrency,
                clock=clock,
                on_record=keep,
                on_sample=sample,
                on_progress=tell,
                should_stop=lambda: endpoint.death() or silence.reason,
                load_workers=load_workers,
            )
    except KeyboardInterrupt:
        folder.seal_with(status="failed", reason="interrupted by the user")
        raise
    if silence.reason is not None:
        endpoint.given_up.append(silence.reason)
    measured = sum(request.phase == "measured" for request in plan)
    failure = outcome.stopped_early or silence.reason or _all_failed(errors, measured)
    return folder.seal_with(
        status="failed" if failure else "sealed",
        reason=failure,
        load_start_s=outcome.load_start_s,
        load_end_s=outcome.load_end_s,
        sampler_cpu_share=sampler.cpu_share,
        sampler_interval_s=sampler.interval_s,
        sampler_problems=tuple(
            f"{problem.source}: {problem.count} readings failed; first: {problem.first_message}"
            for problem in sampler.problems
        ),
    )


def _all_failed(errors: Sequence[str], measured: int) -> str | None:
    if measured == 0 or len(errors) < measured:
        return None
    return f"every request failed; the first said: {errors[0]}"


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
        link_log(log_path, folder.path / LOG_FILE)
        return folder.seal_with(status="skipped" if skipped else "failed", reason=reason)
