"""Puts records on disk as a bench would have left them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness import store
from harness.record import BenchRecord, TrialRecord


def store_run(bench: BenchRecord, trials: Sequence[TrialRecord], root: Path) -> Path:
    """Write a whole run under ``root`` and return its folder."""
    run = root / "fp8_vs_fp16" / bench.run_id
    run.mkdir(parents=True)
    store.write_bench(run, bench)
    for trial in trials:
        with store.TrialFolder(run, trial.run) as folder:
            for request in trial.requests:
                folder.append_request(request)
            for samples in (trial.engine_samples, trial.process_samples, trial.gpu_samples):
                for sample in samples:
                    folder.append_sample(sample)
            folder.log_path.write_text("INFO the engine started\nERROR the last line\n")
            folder.seal(trial.run)
    return run
