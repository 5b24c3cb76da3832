"""Trials on the reference engine: the same plan, the same record, no server in between.

Method: requests are played one after the other through ``engines.reference``; resident memory and
NVIDIA devices are sampled as ever; each request and the bytes of its cache are on disk as soon as
it ends. Not covered: warm-ups beyond those of the workload, and concurrency.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.clock import Clock
from harness.engines.models import ResolvedModel
from harness.engines.reference import ENGINE, ReferenceEngine, ReferenceSpec, command
from harness.errors import ServerDied
from harness.load import LoadProgress
from harness.record import (
    SCHEMA_VERSION,
    Environment,
    PlannedRequest,
    Run,
    ServerFacts,
    TrialFacts,
)
from harness.run import link_log
from harness.scenario import Trial, reference_options
from harness.shell import relative_to_here, with_tilde
from harness.store import TrialFolder
from harness.telemetry.nvml import NvmlSource
from harness.telemetry.process import ProcessSource, tree_pids, tree_rss_bytes
from harness.telemetry.sampler import Sampler
from harness.telemetry.source import Source
from harness.units import Bytes, Seconds

#: The engine computes on every core; a line drawn for every token would slow it down.
TELL_EVERY_S: Seconds = 0.5

#: Gets how far the load is; the reference engine has no KV gauge, so the second is None.
ProgressSink = Callable[[LoadProgress, float | None], None]


def reference_spec(trial: Trial, model: ResolvedModel) -> ReferenceSpec:
    """What the child is told for this trial's variant."""
    options = reference_options(trial.flags)
    return ReferenceSpec(
        model=model.argument,
        offline=model.offline,
        env=trial.env,
        device="cpu" if trial.profile == "cpu" else "cuda",
        **options.model_dump(),
    )


def reference_facts(
    engine: ReferenceEngine, used_before: Bytes | None, used: Bytes | None
) -> ServerFacts:
    """The engine as it was started, in the words of a server's facts."""
    facts = engine.facts
    loaded: tuple[str, ...] = ()
    if facts is not None:
        loaded = (
            f"torch {facts.torch}, {facts.dtype} on {facts.device}, {facts.threads} threads",
            f"weights {facts.weights_bytes} B",
        )
    return ServerFacts(
        url="",
        launched=True,
        command=tuple(with_tilde(relative_to_here(word)) for word in command()),
        env=engine.env,
        engine=ENGINE,
        engine_version=f"transformers {facts.transformers}" if facts is not None else None,
        attention_backend=facts.attention if facts is not None else None,
        startup_s=engine.startup_s,
        device_used_before_bytes=used_before,
        device_used_loaded_bytes=used,
        rss_loaded_bytes=tree_rss_bytes(engine.pid),
        log_kv_lines=loaded,
    )


def run_reference_trial(
    run_folder: Path,
    trial: TrialFacts,
    environment: Environment,
    server: ServerFacts,
    engine: ReferenceEngine,
    plan: Sequence[PlannedRequest],
    *,
    timeout_s: Seconds,
    on_progress: ProgressSink = lambda _progress, _kv_usage: None,
) -> Run:
    """Play one trial and seal it; returns what was written.

    A child that dies makes the trial ``failed`` with the end of its log.

    Raises:
        StoreError: results can't be written.
    """
    started = Run(
        schema_version=SCHEMA_VERSION,
        trial=trial,
        environment=environment,
        status="started",
        server=server,
        zero_unix_s=time.time(),
    )
    sources = _sources(engine.pid, environment)
    with TrialFolder(run_folder, started) as folder:
        link_log(engine.log_path, folder.log_path)
        player = _Player(folder, engine, plan, timeout_s, on_progress)
        sampler = Sampler(sources, player.clock, folder.append_sample)
        try:
            with sampler:
                failure = player.play()
        except KeyboardInterrupt:
            folder.seal_with(status="failed", reason="interrupted by the user")
            raise
        finally:
            for source in sources:
                source.close()
        return folder.seal_with(
            status="failed" if failure else "sealed",
            reason=failure,
            load_start_s=player.start_s,
            load_end_s=player.end_s,
            sampler_cpu_share=sampler.cpu_share,
            sampler_interval_s=sampler.interval_s,
        )


def _sources(pid: int, environment: Environment) -> list[Source]:
    sources: list[Source] = [ProcessSource(pid)]
    if environment.gpus:
        sources.append(NvmlSource.open(lambda: tree_pids(pid)))
    return sources


class _Player:
    """Plays a plan to its end, or to the death of the engine."""

    def __init__(
        self,
        folder: TrialFolder,
        engine: ReferenceEngine,
        plan: Sequence[PlannedRequest],
        timeout_s: Seconds,
        on_progress: ProgressSink,
    ) -> None:
        self.clock = Clock()
        self.start_s: Seconds | None = None
        self.end_s: Seconds | None = None
        self._folder = folder
        self._engine = engine
        self._plan = plan
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._errors: list[str] = []
        self._tokens = 0
        self._told_at_s: Seconds = float("-inf")

    def play(self) -> str | None:
        """Play everything; returns why the trial failed, if it did."""
        for request in self._plan:
            if request.phase == "measured" and self.start_s is None:
                self.start_s = self.clock.now()
            try:
                self._play_one(request)
            except ServerDied as error:
                return f"{error.what}: {error.evidence}" if error.evidence else error.what
            self.end_s = self.clock.now() if self.start_s is not None else None
        measured = sum(request.phase == "measured" for request in self._plan)
        if self._errors and len(self._errors) == measured:
            return f"every request failed; the first said: {self._errors[0]}"
        return None

    def _play_one(self, request: PlannedRequest) -> None:
        before = self._tokens
        generation = self._engine.generate(
            request,
            self.clock,
            timeout_s=self._timeout_s,
            on_token=lambda count: self._tell(request, before + count),
        )
        if request.phase == "measured":
            for sample in generation.cache:
                self._folder.append_sample(sample)
        self._folder.append_request(generation.record)
        if generation.record.error is not None and request.phase == "measured":
            self._errors.append(generation.record.error)

    def _tell(self, request: PlannedRequest, tokens: int) -> None:
        self._tokens = tokens
        now = self.clock.now()
        if now - self._told_at_s < TELL_EVERY_S:
            return
        self._told_at_s = now
        alike = [planned for planned in self._plan if planned.phase == request.phase]
        progress = LoadProgress(
            t_s=now,
            phase=request.phase,
            requests_total=len(alike),
            requests_done=alike.index(request),
            requests_failed=len(self._errors),
            requests_in_flight=1,
            chunks=tokens,
            output_tokens=tokens,
        )
        self._on_progress(progress, None)
