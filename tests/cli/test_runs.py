"""A run in which nothing was measured passes for no result, and hides none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness import machine
from harness.cli.app import build
from harness.cli.scenarios import check_device
from harness.errors import InputError
from harness.scenario import load_scenario
from tests.cli.test_commands import kvbench
from tests.execute.test_local import CONFIG, SCENARIO

NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario, and one run of it against a server that is not there."""
    folder = tmp_path_factory.mktemp("nothing")
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(CONFIG)
    (folder / "demo.yaml").write_text(SCENARIO.format(model=model))
    done = kvbench("bench", "demo.yaml", "--url", NOWHERE, cwd=folder)
    assert done.returncode == 1
    return folder


@pytest.fixture
def place(benched: Path, tmp_path: Path) -> Path:
    """A copy of that folder, for one test alone."""
    return shutil.copytree(benched, tmp_path / "place")


def test_a_report_of_nothing_is_no_success(place: Path) -> None:
    done = kvbench("report", "demo", cwd=place)
    assert done.returncode == 1
    assert "no trial could be measured" in done.stderr
    assert "no OpenAI-compatible server answers" in done.stderr


@pytest.mark.parametrize("words", [("compare", "demo", "demo"), ("report", "demo", "--scoreboard")])
def test_a_run_of_nothing_is_no_side_of_a_comparison(place: Path, words: tuple[str, ...]) -> None:
    done = kvbench(*words, cwd=place)
    assert done.returncode == 2
    assert "nothing was measured in this run" in done.stderr
    assert "No difference" not in done.stdout


def test_a_mistyped_url_hides_no_measured_run(place: Path, standin: Any) -> None:
    measured = kvbench("bench", "demo.yaml", "--url", standin.url(), cwd=place)
    assert measured.returncode == 0, measured.stderr
    again = kvbench("bench", "demo.yaml", "--url", NOWHERE, cwd=place)
    assert again.returncode == 1
    done = kvbench("report", "demo", cwd=place)
    assert done.returncode == 0, done.stderr
    _, name, last = sorted(path.name for path in (place / "results" / "demo").iterdir())
    assert f"run {name}: in later ones ({last}) nothing was measured" in done.stderr
    assert "tok/s" in done.stdout


def test_servers_for_a_gpu_that_is_not_here_are_refused_before_the_first_starts(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place / "demo.yaml"
    launched = load_scenario(path, "cuda")
    monkeypatch.setattr(machine, "detect_profile", lambda: ("cpu", "NVML finds no NVIDIA device"))
    with pytest.raises(InputError, match="no GPU to launch servers on: NVML finds no") as caught:
        check_device(launched)
    assert "--url" in str(caught.value)
    assert "kvbench plan" in str(caught.value)
    # What needs no GPU here stays allowed.
    check_device(load_scenario(path, "cpu"))
    check_device(load_scenario(path, "cuda", attach=NOWHERE))
    monkeypatch.setattr(machine, "detect_profile", lambda: ("cuda", "NVML finds 1 device(s): X"))
    check_device(launched)


@pytest.mark.usefixtures("fake_engine")
def test_a_bench_asks_for_the_gpu_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(machine, "detect_profile", lambda: ("cpu", "NVML finds no NVIDIA device"))
    done = CliRunner().invoke(build(["bench"]), ["bench", "demo.yaml", "--profile", "cuda"])
    assert isinstance(done.exception, InputError)
    assert len(list((place / "results" / "demo").iterdir())) == 1
    planned = CliRunner().invoke(build(["plan"]), ["plan", "demo.yaml", "--profile", "cuda"])
    assert planned.exit_code == 0
