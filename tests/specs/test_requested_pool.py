"""The pool that a server is asked for, by flag and by environment."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from harness.specs.requested_pool import CPU_POOL_VARIABLE, POOL_FLAG, requested_pool_bytes


def test_the_flag_is_the_request() -> None:
    assert requested_pool_bytes({POOL_FLAG: 3}, {}, "cuda") == 3
    assert requested_pool_bytes({}, {}, "cpu") is None
    assert requested_pool_bytes({POOL_FLAG: True}, {}, "cpu") is None


def test_on_the_cpu_the_environments_whole_gib_come_before_the_flag() -> None:
    env = {CPU_POOL_VARIABLE: "2"}
    assert requested_pool_bytes({POOL_FLAG: 3}, env, "cpu") == 2 << 30
    assert requested_pool_bytes({POOL_FLAG: 3}, env, "cuda") == 3


@pytest.mark.parametrize("space", ["", "lots", "0", "-1", "0.5"])
def test_a_space_that_the_engine_takes_for_no_size_is_no_request(space: str) -> None:
    """With 0.5 the engine does not start: it reads an integer."""
    assert requested_pool_bytes({}, {CPU_POOL_VARIABLE: space}, "cpu") is None
    assert requested_pool_bytes({POOL_FLAG: 3}, {CPU_POOL_VARIABLE: space}, "cpu") == 3


def test_the_installed_engine_puts_the_environment_in_the_flags_place() -> None:
    # Found, not imported: that would load torch.
    engine = importlib.util.find_spec("vllm")
    assert engine is not None
    assert engine.origin is not None
    source = (Path(engine.origin).parent / "platforms" / "cpu.py").read_text(encoding="utf-8")
    assert re.search(
        rf'"{CPU_POOL_VARIABLE}".*= int\(os\.environ\[.*{POOL_FLAG} = \w+ \* GiB_bytes',
        source,
        re.DOTALL,
    )
