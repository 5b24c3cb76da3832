"""Launches of the reference engine: transformers in a child, and the trials of its variant.

Method: as with a server, one child per launch; what its trials do is said by ``reference``. Not
covered: questions about quality, which only vLLM is asked.
"""

from __future__ import annotations

import time
from pathlib import Path

from harness.engines.reference import ReferenceEngine
from harness.execute.bench import Bench, Turn
from harness.execute.launch import Launch
from harness.execute.reference import reference_facts, reference_spec, run_reference_trial
from harness.record import Run, ServerFacts
from harness.scenario import Trial
from harness.units import Bytes
from harness.workload.plan import plan
from harness.workload.tokens import token_range


class ReferenceLaunch(Launch[ReferenceEngine]):
    """Transformers in a child process, and the trials of its variant."""

    def __init__(self, bench: Bench, turn: Turn) -> None:
        super().__init__(bench, turn)
        self._used_before: Bytes | None = None

    def start(self, log: Path) -> ReferenceEngine:
        """Start the child with the variant's kind of cache."""
        bench, trial = self.bench, self.turn.trial
        self._used_before = bench.memory.used_before_start(trial)
        return ReferenceEngine.launch(
            reference_spec(trial, bench.model_for(trial, "the reference engine")),
            log,
            timeout_s=bench.scenario.timeouts.startup_s,
            on_stage=bench.progress.starting,
        )

    def play(self, engine: ReferenceEngine) -> None:
        """Play one trial after the other; those behind a dead child are sealed as failed."""
        bench, turn = self.bench, self.turn
        facts = reference_facts(engine, self._used_before, bench.memory.used(turn.trial))
        for number, trial in turn.numbered():
            if (dead := engine.death()) is not None:
                reason = f"ended in an earlier trial: {dead}"
                bench.give_up([trial], reason, skipped=False, facts=facts, log=engine.log_path)
                continue
            bench.progress.trial(trial, number, turn.total)
            run = self._play_one(trial, facts, engine)
            if run.status != "sealed":
                bench.progress.unplayed(trial, run.status, run.reason or "")

    def _play_one(self, trial: Trial, facts: ServerFacts, engine: ReferenceEngine) -> Run:
        bench = self.bench
        began = time.monotonic()
        record = bench.facts_of(trial, {})
        try:
            return run_reference_trial(
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
            bench.spent.load_s += time.monotonic() - began
