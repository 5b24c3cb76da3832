"""Whole benches against a stand-in: budgets, skips, deaths, resume, interrupts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness import store
from harness.errors import EngineMissing, ScenarioError
from harness.execute import prepare
from harness.execute.adaptive import Until
from harness.execute.local import run_scenario
from harness.execute.other_benches import announced
from harness.execute.progress import Silent
from harness.record import BenchRecord, CpuPeaks, GpuFacts, TrialRecord
from harness.scenario import Scenario, Trial, load_scenario
from harness.telemetry import nvml
from tests.fake_engine import stand_in_for_engine
from tests.processes import running
from tests.standin.process import standin_server

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests" / "data" / "server_logs"
CONFIG = (
    '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 30, '
    '"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "hidden_size": 576, '
    '"vocab_size": 49152, "max_position_embeddings": 8192, "dtype": "bfloat16"}'
)
SCENARIO = """\
schema: 1
name: demo
model: {model}
baseline: fp16
server: {{max_model_len: 1024, gpu_memory_utilization: 0.3, enable_prefix_caching: false}}
variants:
  fp16: {{kv_cache_dtype: auto}}
  fp8: {{kv_cache_dtype: fp8}}
kv_budget: {{equal_bytes: 117964800}}
workloads:
  - {{context_tokens: 64, output_tokens: 4, num_prompts: 6, concurrency: 2, warmup_requests: 1}}
repeats: 1
timeouts: {{startup_s: 30, request_s: 10}}
profiles: {{cpu: {{}}}}
"""


@dataclass
class Told(Silent):
    """Keeps what a bench tells."""

    warnings: list[str] = field(default_factory=list)
    lost: list[tuple[str, str, str]] = field(default_factory=list)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def unplayed(self, trial: Trial, status: str, reason: str) -> None:
        self.lost.append((trial.variant, status, reason))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(CONFIG)
    return folder


def scenario(tmp_path: Path, model: Path, *overrides: str) -> Scenario:
    path = tmp_path / "demo.yaml"
    path.write_text(SCENARIO.format(model=model))
    return load_scenario(path, "cpu", overrides=overrides)


def bench(
    tmp_path: Path, wanted: Scenario, told: Told | None = None, **more: Any
) -> tuple[BenchRecord, dict[str, list[TrialRecord]]]:
    folder = run_scenario(
        wanted, root=tmp_path / "results", command=["test"], progress=told or Told(), **more
    )
    record, trials = store.read_bench(folder)
    by_variant: dict[str, list[TrialRecord]] = {}
    for trial in trials:
        by_variant.setdefault(trial.run.trial.variant, []).append(trial)
    return record, by_variant


@dataclass
class Whole:
    """A bench of two variants, twice each, and what it asked of the machine."""

    record: BenchRecord
    trials: dict[str, list[TrialRecord]]
    folder: Path
    machines: list[str]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "config.json").write_text(CONFIG)
    machines: list[str] = []

    def peaks(machine: str) -> CpuPeaks:
        machines.append(machine)
        return CpuPeaks(4e10, 1e12)

    with pytest.MonkeyPatch.context() as patch:
        stand_in_for_engine(patch, folder / "cache")
        patch.setattr(prepare, "cpu_ceilings", peaks)
        record, trials = bench(folder, scenario(folder, folder, "repeats=2"))
    return Whole(record, trials, folder / "results" / "demo" / record.run_id, machines)


def test_every_trial_is_measured_and_sealed(whole: Whole) -> None:
    assert whole.record.status == "finished"
    assert {v: [t.run.status for t in ts] for v, ts in whole.trials.items()} == {
        "fp16": ["sealed"] * 2,
        "fp8": ["sealed"] * 2,
    }
    one = whole.trials["fp8"][0]
    assert [r.phase for r in one.requests].count("warmup") == 1
    assert sum(r.phase == "measured" and r.error is None for r in one.requests) == 6
    assert one.run.server is not None
    assert "--kv-cache-memory-bytes" in one.run.server.command
    assert one.run.server.granted.kv_cache_tokens == 10_240
    assert one.engine_samples
    assert one.process_samples
    assert "KV cache size" in (whole.folder / one.run.trial.trial_id / "server.log").read_text()


def test_own_time_is_small_and_accounted_for(whole: Whole) -> None:
    record = whole.record
    assert record.wall_s is not None
    parts = (record.server_startup_s, record.load_s, record.server_stop_s)
    assert all(part is not None and part > 0 for part in parts)
    assert sum(part or 0 for part in parts) <= record.wall_s


def test_what_the_cpu_does_at_best_is_part_of_every_record(whole: Whole) -> None:
    assert whole.record.environment.cpu_peaks == CpuPeaks(4e10, 1e12)
    assert whole.trials["fp8"][0].run.environment.cpu_peaks == CpuPeaks(4e10, 1e12)
    (asked,) = whole.machines
    assert f"{whole.record.environment.cpu_cores} cores" in asked


@pytest.mark.usefixtures("fake_engine")
def test_without_a_stated_budget_every_variant_gets_what_the_baseline_was_granted(
    tmp_path: Path, model: Path
) -> None:
    record, trials = bench(tmp_path, scenario(tmp_path, model, "kv_budget=equal_bytes"))
    assert record.kv_budget_bytes == 1 << 30
    server = trials["fp8"][0].run.server
    assert server is not None
    assert server.granted.kv_cache_memory_bytes == 1 << 30


@pytest.mark.usefixtures("fake_engine")
def test_equal_tokens_gives_every_variant_the_same_tokens(tmp_path: Path, model: Path) -> None:
    _, trials = bench(tmp_path, scenario(tmp_path, model, "kv_budget={equal_tokens: 5120}"))
    granted = {
        variant: found[0].run.server.granted.kv_cache_tokens
        for variant, found in trials.items()
        if found[0].run.server is not None
    }
    assert granted == {"fp16": 5120, "fp8": 5120}


@pytest.mark.usefixtures("fake_engine")
def test_on_a_card_equal_tokens_are_counted_with_the_step_that_it_brings(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window of 64 and two steps in flight; blocks of 16 tokens, 368,640 B.

    An H100's step is 8,192: a request of 8,192 tokens takes 8,192 / 16 + 1 = 513 blocks, so 16,384
    tokens take 1,026. With the 2,048 of a small card it would be ⌈(63 + 4,096) / 16⌉ + 1 = 261.
    """
    card = GpuFacts(0, "NVIDIA H100 80GB HBM3", 80 << 30, None)
    monkeypatch.setattr(nvml, "probe", lambda: nvml.NvmlProbe((card,)))
    path = tmp_path / "demo.yaml"
    path.write_text(SCENARIO.format(model=model).replace("{cpu: {}}", "{cuda: {}}"))
    window = "{sliding_window: 64, model_type: mistral}"
    changes = ("kv_budget={equal_tokens: 16384}", f"server.hf_overrides={window}")
    wanted = load_scenario(path, "cuda", overrides=[*changes, "server.max_model_len=8192"])
    _, trials = bench(tmp_path, wanted)
    flags = trials["fp16"][0].run.trial.server_flags
    assert flags["kv_cache_memory_bytes"] == 1026 * 368_640


def test_equal_tokens_of_an_unknown_model_is_refused(
    tmp_path: Path, model: Path, fake_engine: None
) -> None:
    (model / "config.json").unlink()
    (model / "config.json").write_text('{"model_type": "unheard_of", "architectures": ["X"]}')
    told = Told()
    bench(tmp_path, scenario(tmp_path, model, "kv_budget={equal_tokens: 5120}"), told)
    assert {status for _, status, _ in told.lost} == {"failed"}
    assert "equal_tokens needs the KV layout" in told.lost[0][2]


@pytest.mark.usefixtures("fake_engine")
def test_a_variant_the_engine_refuses_is_skipped_once_and_for_all(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE_FP8", f"log:{LOGS / 'unsupported.log'}")
    record, trials = bench(tmp_path, scenario(tmp_path, model, "repeats=2"))
    assert [t.run.status for t in trials["fp16"]] == ["sealed", "sealed"]
    assert [t.run.status for t in trials["fp8"]] == ["skipped", "skipped"]
    assert "does not take" in record.skipped["fp8"]
    logs = sorted((tmp_path / "results" / "demo" / record.run_id / "servers").iterdir())
    assert len([log for log in logs if "fp8" in log.name]) == 1


@pytest.mark.usefixtures("fake_engine")
def test_a_server_that_dies_in_a_load_fails_that_trial_and_the_rest_goes_on(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fourth request of the fp16 server ends it, in the middle of its answer.
    monkeypatch.setenv("FAKE_ENGINE", "options:fail=exit,fail_after=2,itl_s=0.05")
    monkeypatch.setenv("FAKE_ENGINE_FP8", "options:itl_s=0")
    told = Told()
    _, trials = bench(tmp_path, scenario(tmp_path, model, "workloads.0.warmup_requests=0"), told)
    dead = trials["fp16"][0]
    assert dead.run.status == "failed"
    assert "server" in (dead.run.reason or "")
    assert all(r.error for r in dead.requests)
    assert trials["fp8"][0].run.status == "sealed"
    assert [variant for variant, _, _ in told.lost] == ["fp16"]


@pytest.mark.usefixtures("fake_engine")
def test_a_load_in_which_every_request_fails_is_failed(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "options:fail=http,status=500")
    _, trials = bench(tmp_path, scenario(tmp_path, model))
    assert "every request failed" in (trials["fp16"][0].run.reason or "")


@pytest.mark.usefixtures("fake_engine")
def test_one_silent_warm_up_ends_the_launch_and_the_next_variant_goes_on(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Healthy, takes every request and answers none.
    monkeypatch.setenv("FAKE_ENGINE", "options:fail=hang")
    monkeypatch.setenv("FAKE_ENGINE_FP8", "options:itl_s=0")
    told = Told()
    loads = (
        "workloads.0.warmup_requests=5",
        "workloads.0.context_tokens=[64, 96]",
        "timeouts.request_s=3",
    )
    record, trials = bench(tmp_path, scenario(tmp_path, model, *loads), told)
    # One by one, 2 loads of 5 warm-ups and 6 requests (two at a time) take 16 time limits: 48 s.
    assert (record.load_s or 0) < 24
    first, second = trials["fp16"]
    assert [t.run.status for t in trials["fp16"]] == ["failed", "failed"]
    assert "up but silent: a warm-up request got no token within 3 s" in (first.run.reason or "")
    assert {request.phase for request in first.requests} == {"warmup"}
    assert (second.run.reason or "").startswith("the server was given up in an earlier trial")
    assert second.requests == ()
    assert [t.run.status for t in trials["fp8"]] == ["sealed", "sealed"]


@pytest.mark.usefixtures("fake_engine")
def test_a_server_that_falls_silent_in_the_load_is_not_asked_for_the_rest(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "options:fail=hang")
    loads = ("workloads.0.warmup_requests=0", "timeouts.request_s=1", "baseline=fp16")
    _, trials = bench(tmp_path, scenario(tmp_path, model, *loads))
    (found,) = trials["fp16"]
    assert found.run.status == "failed"
    # Two were in flight; the other four were never sent.
    assert len(found.requests) == 2


def test_without_vllm_the_bench_stops_at_once(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("KVBENCH_ENGINE_PYTHON", str(bare))
    with pytest.raises(EngineMissing, match="not installed"):
        bench(tmp_path, scenario(tmp_path, model))


@pytest.mark.usefixtures("fake_engine")
def test_resume_runs_only_what_is_not_sealed_and_names_a_lasting_neighbour_once(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = scenario(tmp_path, model)
    monkeypatch.setenv("FAKE_ENGINE_FP8", f"log:{LOGS / 'too_small.log'}")
    with announced(tmp_path / "other" / "run-1"):
        first, trials = bench(tmp_path, wanted)
        kept = trials["fp16"][0].run.zero_unix_s
        assert trials["fp8"][0].run.status == "failed"
        monkeypatch.delenv("FAKE_ENGINE_FP8")
        second, trials = bench(tmp_path, wanted, resume=True)
    assert second.run_id == first.run_id
    assert trials["fp16"][0].run.zero_unix_s == kept
    assert trials["fp8"][0].run.status == "sealed"
    assert (second.wall_s or 0) > (first.wall_s or 0)
    assert first.beside == second.beside == ("other/run-1",)


@pytest.mark.usefixtures("fake_engine")
def test_a_resumed_launch_has_a_log_of_its_own_and_its_own_reason(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = scenario(tmp_path, model)
    monkeypatch.setenv("FAKE_ENGINE_FP8", f"log:{LOGS / 'too_small.log'}")
    _, trials = bench(tmp_path, wanted)
    assert "too small for one request" in (trials["fp8"][0].run.reason or "")
    other = tmp_path / "other.log"
    other.write_text("RuntimeError: something else\n")
    monkeypatch.setenv("FAKE_ENGINE_FP8", f"log:{other}")
    record, trials = bench(tmp_path, wanted, resume=True)
    assert (trials["fp8"][0].run.reason or "").startswith("RuntimeError: something else")
    logs = tmp_path / "results" / "demo" / record.run_id / "servers"
    assert sorted(log.name for log in logs.glob("*fp8*")) == ["001-fp8.2.log", "001-fp8.log"]


@pytest.mark.usefixtures("fake_engine")
def test_a_cache_that_is_cleared_while_a_bench_runs_leaves_its_record_closed(
    tmp_path: Path, model: Path
) -> None:
    class Clears(Told):
        def stopping(self) -> None:
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)

    record, trials = bench(tmp_path, scenario(tmp_path, model), Clears())
    assert record.status == "finished"
    assert [t.run.status for ts in trials.values() for t in ts] == ["sealed", "sealed"]


@pytest.mark.usefixtures("fake_engine")
def test_what_goes_wrong_at_the_last_look_leaves_the_record_closed(
    tmp_path: Path, model: Path
) -> None:
    class Broken(Told):
        def warn(self, text: str) -> None:
            raise BrokenPipeError(text)

    class Late(Broken):
        def stopping(self) -> None:
            if len(list((tmp_path / "results").glob("demo/*/fp8-*/run.json"))) and not held:
                held.append(stack.enter_context(announced(tmp_path / "other" / "run-1")))

    held: list[Any] = []
    with contextlib.ExitStack() as stack, pytest.raises(BrokenPipeError):
        bench(tmp_path, scenario(tmp_path, model), Late())
    (folder,) = (tmp_path / "results" / "demo").iterdir()
    record, _ = store.read_bench(folder)
    assert record.status == "finished"
    assert record.beside == ("other/run-1",)


@pytest.mark.parametrize("killed", [False, True])
def test_resume_with_nothing_left_returns_the_measured_run_and_says_so(
    tmp_path: Path, whole: Whole, killed: bool
) -> None:
    model = whole.folder.parents[2]
    folder = tmp_path / "results" / "demo" / whole.folder.name
    shutil.copytree(whole.folder, folder)
    if killed:
        # As a kill leaves it between the last seal and the end of the run.
        store.write_bench(folder, replace(whole.record, status="started"))
    told = Told()
    record, trials = bench(tmp_path, scenario(tmp_path, model, "repeats=2"), told, resume=True)
    assert record == whole.record
    assert trials == whole.trials
    assert "nothing is left to measure" in told.warnings[0]
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.usefixtures("fake_engine")
def test_resume_of_what_was_never_begun_starts_anew_and_says_so(
    tmp_path: Path, model: Path
) -> None:
    told = Told()
    record, _ = bench(tmp_path, scenario(tmp_path, model), told, resume=True)
    assert record.status == "finished"
    assert "no unfinished run" in told.warnings[0]


@pytest.mark.usefixtures("fake_engine")
def test_repeats_are_added_until_the_interval_is_narrow_or_the_cap_is_hit(
    tmp_path: Path, model: Path
) -> None:
    wanted = scenario(tmp_path, model)
    narrow, trials = bench(tmp_path, wanted, until=Until(relative_width=1e-9, max_repeats=3))
    assert [t.run.trial.repeat for t in trials["fp8"]] == [0, 1, 2]
    assert [t.run.trial.launch for t in trials["fp16"]] == [0, 3, 4]
    assert narrow.scenario["repeats"] == 3
    _, trials = bench(tmp_path, wanted, until=Until(relative_width=1e9, max_repeats=9))
    assert len(trials["fp16"]) == 3


INTERRUPTED = textwrap.dedent("""
    import sys
    from harness.cli.app import main
    sys.argv = ["kvbench", "bench", sys.argv[1], "--profile", "cpu", "--out", sys.argv[2],
                "--reports", sys.argv[2] + "-reports"]
    main()
""")


@pytest.mark.usefixtures("fake_engine")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_server_keeps_the_requests_and_exits_130(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "options:ttft_s=0.3")
    scenario(tmp_path, model)
    path = tmp_path / "demo.yaml"
    path.write_text(path.read_text().replace("num_prompts: 6", "num_prompts: 600"))
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(path), str(tmp_path / "results")],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        requests = await_requests(tmp_path / "results", 3, child)
        servers = [p.pid for p in psutil.Process(child.pid).children(recursive=True)]
        os.kill(child.pid, number)
        assert child.wait(timeout=60) == 130
    assert not [pid for pid in servers if running(pid)]
    record, trials = store.read_bench(requests.parents[1])
    assert record.status == "interrupted"
    assert trials[0].run.status == "failed"
    assert "interrupted" in (trials[0].run.reason or "")
    assert len(trials[0].requests) >= 3


def await_requests(root: Path, count: int, bench: subprocess.Popen[str] | None = None) -> Path:
    """The first file with so many requests; a bench that ends without them is told at once."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if bench is not None and bench.poll() is not None and bench.stderr is not None:
            raise AssertionError(f"the bench ended with {bench.returncode}: {bench.stderr.read()}")
        for path in root.glob("*/*/*/requests.jsonl"):
            if len(path.read_bytes().splitlines()) >= count:
                return path
        time.sleep(0.05)
    raise AssertionError("no request was stored in time")


def test_an_attached_server_is_measured_without_launching(
    tmp_path: Path, model: Path, standin: Any
) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(SCENARIO.format(model=model))
    wanted = load_scenario(path, "cpu", attach=standin.url())
    record, trials = bench(tmp_path, wanted)
    found = trials["attached"][0]
    assert found.run.status == "sealed"
    assert found.run.server is not None
    assert not found.run.server.launched
    assert found.run.server.command == ()
    assert record.kv_budget_bytes is None
    # It may run on any machine; this one's peaks say nothing of it.
    assert record.environment.cpu_peaks is None


def test_an_attached_server_is_stored_as_what_it_serves(
    tmp_path: Path, model: Path, standin: Any
) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(SCENARIO.format(model=model))
    record, trials = bench(tmp_path, load_scenario(path, "cpu", attach=standin.url()))
    facts = trials["attached"][0].run.trial
    assert facts.model == record.scenario["model"] == "standin"
    # The scenario's model is that of servers launched here; its layout is not this one's.
    assert facts.model_config is None
    assert record.environment.profile == "attached"
    assert record.environment.gpus == ()


def test_a_model_that_was_named_for_an_attached_server_holds_only_if_it_is_served(
    tmp_path: Path, model: Path, standin: Any
) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(SCENARIO.format(model=model))
    told = Told()
    named = load_scenario(path, "cpu", overrides=[f"model={model}"], attach=standin.url())
    record, trials = bench(tmp_path, named, told)
    assert record.scenario["model"] == "standin"
    assert trials["attached"][0].run.trial.model_config is None
    assert any("serves standin, not" in text for text in told.warnings)
    with standin_server("--model", str(model)) as server:
        same = load_scenario(path, "cpu", overrides=[f"model={model}"], attach=server.url())
        record, trials = bench(tmp_path, same)
    assert record.scenario["model"] == str(model)
    assert trials["attached"][0].run.trial.model_config is not None


def test_an_attached_server_that_is_not_there_fails_with_the_reason(
    tmp_path: Path, model: Path
) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(SCENARIO.format(model=model))
    told = Told()
    bench(tmp_path, load_scenario(path, "cpu", attach="http://127.0.0.1:9/v1"), told)
    assert "no OpenAI-compatible server answers" in told.lost[0][2]


def test_a_budget_contradicted_by_a_flag_never_reaches_a_launch(
    tmp_path: Path, model: Path
) -> None:
    with pytest.raises(ScenarioError, match="contradicts kv_budget"):
        scenario(tmp_path, model, "variants.fp8.kv_cache_memory_bytes=5")
