from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.engines.ceilings import cpu_ceilings


def test_a_machine_that_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    cache = tmp_path / "ceilings.json"
    cache.write_text(json.dumps({"this machine": [2e10, 3e11]}))
    found = cpu_ceilings("this machine", cache)
    assert (found.bandwidth_bytes_per_s, found.flops_per_s) == (2e10, 3e11)
    assert found.device == "this machine"


@pytest.mark.engine
def test_a_new_machine_is_measured_once_and_kept(tmp_path: Path) -> None:
    cache = tmp_path / "deep" / "ceilings.json"
    first = cpu_ceilings("new", cache)
    # Between a small board and a large server.
    assert 1e9 < first.bandwidth_bytes_per_s < 2e12
    assert 1e9 < first.flops_per_s < 1e15
    assert cpu_ceilings("new", cache) == first
    assert json.loads(cache.read_text()).keys() == {"new"}
