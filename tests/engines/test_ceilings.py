from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness.engines.ceilings import cpu_ceilings
from harness.record import CpuPeaks


def key(machine: str) -> str:
    return f"{machine}, {sys.executable}"


def test_a_machine_that_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    cache = tmp_path / "ceilings.json"
    cache.write_text(json.dumps({key("this machine"): [2e10, 3e11]}))
    assert cpu_ceilings("this machine", cache) == CpuPeaks(2e10, 3e11)


@pytest.mark.parametrize("answer", ["exit 1", "echo no JSON", "echo '[1.0]'", "echo '[0.0, 1.0]'"])
def test_what_could_not_be_measured_is_unknown_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{answer}\n")
    python.chmod(0o755)
    monkeypatch.setenv("KVBENCH_ENGINE_PYTHON", str(python))
    assert cpu_ceilings("new", tmp_path / "ceilings.json") is None
    assert not (tmp_path / "ceilings.json").exists()


def test_a_cache_that_can_not_be_written_costs_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '[1e10, 2e11]'\n")
    python.chmod(0o755)
    monkeypatch.setenv("KVBENCH_ENGINE_PYTHON", str(python))
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    assert cpu_ceilings("new", in_the_way / "ceilings.json") == CpuPeaks(1e10, 2e11)


@pytest.mark.engine
def test_a_new_machine_is_measured_once_and_kept(tmp_path: Path) -> None:
    cache = tmp_path / "deep" / "ceilings.json"
    first = cpu_ceilings("new", cache)
    assert first is not None
    # Between a small board and a large server.
    assert 1e9 < first.bandwidth_bytes_per_s < 2e12
    assert 1e9 < first.flops_per_s < 1e15
    assert cpu_ceilings("new", cache) == first
    assert json.loads(cache.read_text()).keys() == {key("new")}
