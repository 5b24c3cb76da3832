"""Launches of vLLM: a server with its pool, the trials of its variant, the questions that are due.

Method: the server is started through ``engines.vllm`` with what ``Bench.pool_flags`` adds; what it
was granted is read back, and of the baseline's noted as the budget. Not covered: playing
(``served``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import machine
from harness.engines import vllm
from harness.errors import KvbenchError, ServerStartError
from harness.execute.bench import Bench, Turn
from harness.execute.client_cores import client_cores
from harness.execute.facts import read_log, server_facts
from harness.execute.launch import Launch
from harness.execute.served import Served, play_served
from harness.execute.strategies import refusal
from harness.load import Target
from harness.run import Endpoint
from harness.units import Bytes


class VllmLaunch(Launch[vllm.Server]):
    """A vLLM server, the trials of its variant, and the questions that are due."""

    def __init__(self, bench: Bench, turn: Turn) -> None:
        super().__init__(bench, turn)
        self._extra: dict[str, Any] = {}
        self._used_before: Bytes | None = None

    def start(self, log: Path) -> vllm.Server:
        """Start the server with its pool; refuse what it would start and then not do."""
        bench, trial = self.bench, self.turn.trial
        if (reason := refusal(trial, bench.device)) is not None:
            raise ServerStartError(reason, kind="unsupported")
        self._extra = bench.pool_flags(trial)
        model = bench.model_for(trial, "a scenario that launches servers")
        flags = {**trial.flags, **self._extra}
        spec = vllm.ServerSpec(model.argument, flags, trial.env, model.offline)
        self._used_before = bench.memory.used_before_start(trial)
        return vllm.Server.launch(
            spec,
            log,
            timeout_s=bench.scenario.timeouts.startup_s,
            on_stage=bench.progress.starting,
        )

    def failed(self, error: KvbenchError, log: Path) -> None:
        """Seal the trials; where only questions were due, say that they are not asked."""
        if self.turn.pending:
            super().failed(error, log)
            return
        variant = self.turn.trial.variant
        self.bench.progress.warn(f"no server of {variant} to ask about quality: {error.what}")

    def play(self, engine: vllm.Server) -> None:
        """Play the trials and the questions, off the cores of the engine's threads."""
        bench, trial = self.bench, self.turn.trial
        facts = server_facts(
            engine,
            engine_version=machine.engine_version(),
            used_before=self._used_before,
            used_loaded=bench.memory.used(trial),
        )
        bench.progress.healthy(engine.startup_s, facts.granted)
        bench.note_grant(trial, facts)
        request_s = bench.scenario.timeouts.request_s
        endpoint = Endpoint(
            root_url=engine.root_url,
            target=Target(engine.api_url, vllm.SERVED_NAME, None, request_s),
            pid=engine.pid,
            log_path=engine.log_path,
            death=engine.death,
        )
        with client_cores(read_log(engine.log_path), bench.progress):
            play_served(bench, self.turn, Served(facts, endpoint, self._extra))
