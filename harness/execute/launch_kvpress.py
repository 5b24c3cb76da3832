"""Launches of kvpress: one child in an environment of its own, which measures every policy.

Method: all policies share a launch, since the model is loaded once; what a trial of them does is
said by ``kvpress_trials``. Where their environment is missing they are skipped and the run goes on.
"""

from __future__ import annotations

import time
from pathlib import Path

from harness.engines.kvpress import KvpressEngine, KvpressSpec
from harness.errors import EngineMissing, KvbenchError
from harness.execute import kvpress_trials
from harness.execute.launch import Launch
from harness.record import Run
from harness.scenario import Trial


class KvpressLaunch(Launch[KvpressEngine]):
    """One child that measures every policy of kvpress; where none can be, that is said."""

    @property
    def name(self) -> str:
        """All policies share a launch."""
        return "kvpress"

    def start(self, log: Path) -> KvpressEngine:
        """Start the child with the model that the policies are applied to."""
        bench, trial = self.bench, self.turn.trial
        if (why := kvpress_trials.refusal(bench.scenario)) is not None:
            raise EngineMissing(why)
        bench.memory.used_before_start(trial)
        model = bench.model_for(trial, "kvpress")
        return KvpressEngine.launch(
            KvpressSpec(model.argument, bench.device),
            log,
            timeout_s=bench.scenario.timeouts.startup_s,
            on_stage=bench.progress.starting,
        )

    def failed(self, error: KvbenchError, log: Path) -> None:
        """Skip the policies where their environment is missing, else fail them; the run goes on."""
        skipped = isinstance(error, EngineMissing)
        if skipped:
            for trial in self.turn.pending:
                self.bench.final_failures[trial.variant] = (True, error.told)
        kept = log if log.exists() else None
        self.bench.give_up(self.turn.pending, error.told, skipped=skipped, log=kept)

    def play(self, engine: KvpressEngine) -> None:
        """Measure one policy after the other."""
        bench = self.bench
        for number, trial in self.turn.numbered():
            bench.progress.trial(trial, number, self.turn.total)
            run = self._press(trial, engine)
            if run.status != "sealed":
                bench.progress.unplayed(trial, run.status, run.reason or "")

    def _press(self, trial: Trial, engine: KvpressEngine) -> Run:
        bench = self.bench
        began = time.monotonic()
        try:
            return kvpress_trials.run_policy_trial(
                bench.folder,
                bench.facts_of(trial, {}),
                bench.environment,
                engine,
                timeout_s=bench.scenario.timeouts.request_s,
                progress=bench.progress,
            )
        finally:
            bench.spent.load_s += time.monotonic() - began
