"""Whole benches on the reference engine, with a model made here."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from harness import machine, store
from harness.engines import reference_child
from harness.execute.estimate import estimate
from harness.execute.local import run_scenario
from harness.execute.outline import outline
from harness.execute.progress import Silent
from harness.load import LoadProgress
from harness.record import BenchRecord, GpuFacts, TrialRecord
from harness.scenario import Scenario, load_scenario
from harness.telemetry import nvml
from tests.engines import reference_stub, tiny_llama
from tests.processes import command_line

SCENARIO = """\
schema: 1
name: demo
engine: reference
model: {model}
baseline: no_cache
server: {{threads: 1}}
variants:
  no_cache: {{cache: none}}
  growing: {{cache: growing}}
  static: {{cache: static, max_cache_len: 100}}
workloads:
  - {{context_tokens: 20, output_tokens: 4, num_prompts: 2, concurrency: 1, warmup_requests: 1}}
repeats: 1
profiles: {{cpu: {{}}}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.write(tmp_path_factory.mktemp("tiny-llama"))


def scenario(tmp_path: Path, model: Path, *overrides: str) -> Scenario:
    path = tmp_path / "demo.yaml"
    path.write_text(SCENARIO.format(model=model))
    return load_scenario(path, "cpu", overrides=overrides)


def run(
    tmp_path: Path, wanted: Scenario, progress: Silent | None = None, *, resume: bool = False
) -> tuple[BenchRecord, dict[str, TrialRecord]]:
    folder = run_scenario(
        wanted,
        root=tmp_path / "results",
        command=("kvbench",),
        progress=progress or Silent(),
        resume=resume,
    )
    record, trials = store.read_bench(folder)
    return record, {trial.run.trial.variant: trial for trial in trials}


def test_every_variant_leaves_a_sealed_record_like_any_other(tmp_path: Path, model: Path) -> None:
    bench, trials = run(tmp_path, scenario(tmp_path, model))
    assert bench.status == "finished"
    assert {name: trial.run.status for name, trial in trials.items()} == dict.fromkeys(
        ("no_cache", "growing", "static"), "sealed"
    )
    for trial in trials.values():
        assert trial.run.trial.engine == "reference"
        assert trial.run.server is not None
        assert trial.run.server.engine == "reference"
        assert (trial.run.server.engine_version or "").startswith("transformers ")
        assert [request.phase for request in trial.requests] == ["warmup", "measured", "measured"]
        assert all(request.output_tokens == 4 for request in trial.requests)
        assert trial.process_samples
        # Only measured requests leave the bytes of their cache: at the first and the last token.
        assert [s.request_index for s in trial.cache_samples] == [1, 1, 2, 2]
    each = tiny_llama.FP32_BYTES_PER_TOKEN
    held = {name: {s.allocated_bytes for s in t.cache_samples} for name, t in trials.items()}
    assert held == {
        "no_cache": {0},
        "growing": {20 * each, 23 * each},
        "static": {100 * each},
    }


@dataclass
class KillsTheEngine(Silent):
    """Ends the engine of one variant in the middle of its load."""

    def load(self, progress: LoadProgress, kv_usage: float | None) -> None:
        for child in psutil.Process().children():
            if Path(reference_child.__file__).name in command_line(child):
                child.kill()


def test_an_engine_that_dies_fails_its_trials_and_resume_completes_the_run(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A child that loads no model dies like any other.
    monkeypatch.setenv("KVBENCH_REFERENCE_PYTHON", str(reference_stub.program(tmp_path)))
    one = scenario(tmp_path, model, "variants={growing: {}}", "baseline=growing")
    first, trials = run(tmp_path, one, KillsTheEngine())
    assert trials["growing"].run.status == "failed"
    assert "exit code -9" in (trials["growing"].run.reason or "")
    second, trials = run(tmp_path, one, resume=True)
    assert second.run_id == first.run_id
    assert trials["growing"].run.status == "sealed"


def test_a_model_that_does_not_load_fails_its_trials_with_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "llama"}')
    one = scenario(tmp_path, broken, "variants={growing: {}}", "baseline=growing")
    _, trials = run(tmp_path, one)
    assert trials["growing"].run.status == "failed"
    assert str(broken) in (trials["growing"].run.reason or "")


def test_the_plan_names_the_child_and_the_estimate_counts_what_is_recomputed(
    tmp_path: Path, model: Path
) -> None:
    wanted = scenario(tmp_path, model)
    planned = outline(wanted)
    assert {Path(item.command[1]).name for item in planned} == {"reference_child.py"}
    assert {item.capacity for item in planned} == {None}
    # 500 tokens after 1,000: 624,750 positions at 600 a second, three requests, one start of 9 s.
    long = (
        "variants={no_cache: {cache: none}}",
        "workloads.0.context_tokens=1000",
        "workloads.0.output_tokens=500",
    )
    expected = estimate(scenario(tmp_path, model, *long), tmp_path)
    assert expected.total_s == pytest.approx(9 + 3 * 624_750 / 600)


def test_the_next_child_starts_only_when_a_gpu_has_its_memory_back(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is asked for is when the next child starts; the children have no model to load.
    monkeypatch.setenv("KVBENCH_REFERENCE_PYTHON", str(reference_stub.program(tmp_path)))
    described = machine.describe
    card = GpuFacts(index=0, name="a card", total_bytes=80 << 30, driver=None)
    monkeypatch.setattr(
        machine, "describe", lambda profile: dataclasses.replace(described(profile), gpus=(card,))
    )
    # Before the first start, loaded, and twice after its end; the second child's from there on.
    readings = [1 << 30, 9 << 30, 9 << 30, 1 << 30, 1 << 30, 9 << 30, 1 << 30]
    left = iter(readings)
    monkeypatch.setattr(nvml, "device_used_bytes", lambda **_: next(left))
    two = ("variants={no_cache: {cache: none}, growing: {}}",)
    _, trials = run(tmp_path, scenario(tmp_path, model, *two))
    assert next(left, None) is None
    before = {n: t.run.server.device_used_before_bytes for n, t in trials.items() if t.run.server}
    assert before == {"no_cache": 1 << 30, "growing": 1 << 30}
