"""Trials on the reference engine: the same plan, the same record, no server in between.

Method: requests are played one after the other through ``engines.reference``; resident memory and
NVIDIA devices are sampled as ever; each request and the bytes of its cache are on disk as soon as
it ends. Not covered: warm-ups beyond those of the workload, and concurrency.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.clock import Clock
from harness.engines.models import ResolvedModel
from harness.engines.reference import ENGINE, ReferenceEngine, ReferenceSpec, command
from harness.errors import ServerDied
from harness.load import LoadProgress
from harness.record import (
    Environment,
    PlannedRequest,
    Run,
    ServerFacts,
    TrialFacts,
)
from harness.run import LoadOutcome, ProgressSink, all_failed, begin, record_trial
from harness.scenario import Trial, reference_options
from harness.shell import relative_to_here, with_tilde
from harness.store import TrialFolder
from harness.telemetry.nvml import NvmlSource
from harness.telemetry.process import ProcessSource, tree_pids, tree_rss_bytes
from harness.telemetry.source import Source
from harness.units import Bytes, Seconds

#: The engine computes on every core; a line drawn for every token would slow it down.
TELL_EVERY_S: Seconds = 0.5


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
    player = _Player(engine, plan, timeout_s, on_progress)
    started = begin(trial, environment, server)
    sources = _sources(engine.pid, environment)
    return record_trial(run_folder, started, engine.log_path, sources, player.play)


def _sources(pid: int, environment: Environment) -> list[Source]:
    sources: list[Source] = [ProcessSource(pid)]
    if environment.gpus:
        sources.append(NvmlSource.open(lambda: tree_pids(pid)))
    return sources


class _Player:
    """Plays a plan to its end, or to the death of the engine."""

    def __init__(
        self,
        engine: ReferenceEngine,
        plan: Sequence[PlannedRequest],
        timeout_s: Seconds,
        on_progress: ProgressSink,
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._errors: list[str] = []
        self._tokens = 0
        self._told_at_s: Seconds = float("-inf")

    def play(self, folder: TrialFolder, clock: Clock) -> LoadOutcome:
        """Play everything, one request after the other."""
        start_s = end_s = None
        for request in self._plan:
            if request.phase == "measured" and start_s is None:
                start_s = clock.now()
            try:
                self._play_one(request, folder, clock)
            except ServerDied as error:
                return LoadOutcome(start_s, end_s, error.told)
            end_s = clock.now() if start_s is not None else None
        return LoadOutcome(start_s, end_s, all_failed(self._errors, self._plan))

    def _play_one(self, request: PlannedRequest, folder: TrialFolder, clock: Clock) -> None:
        before = self._tokens
        generation = self._engine.generate(
            request,
            clock,
            timeout_s=self._timeout_s,
            on_token=lambda count: self._tell(request, before + count, clock),
        )
        if request.phase == "measured":
            for sample in generation.cache:
                folder.append_sample(sample)
        folder.append_request(generation.record)
        if generation.record.error is not None and request.phase == "measured":
            self._errors.append(generation.record.error)

    def _tell(self, request: PlannedRequest, tokens: int, clock: Clock) -> None:
        self._tokens = tokens
        now = clock.now()
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
