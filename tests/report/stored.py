"""Puts records on disk as a bench would have left them."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

from harness import store
from harness.record import BenchRecord, TrialRecord

#: Real runs, trimmed by ``tests/data/trim_run.py``.
RUNS = Path(__file__).parents[1] / "data" / "runs"


def unpacked(scenario: str, root: Path) -> Path:
    """The stored run of a scenario that ships, below ``root``."""
    run = root / "results" / scenario / "run"
    with tarfile.open(RUNS / f"{scenario}.tar.xz") as archive:
        archive.extractall(run, filter="data")
    return run


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
