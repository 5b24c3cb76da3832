"""The entry point is found by the engine, costs nothing, and does nothing unless asked."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from harness.engines.eviction import plugin

QUIET = """
import sys
from harness.engines.eviction.plugin import register
register()
heavy = {"vllm", "torch", "transformers", "openai"} & set(sys.modules)
assert not heavy, heavy
"""


def test_the_engine_finds_the_entry_point() -> None:
    (found,) = entry_points(group="vllm.general_plugins", name="kvbench_eviction")
    assert found.load() is plugin.register


@pytest.mark.parametrize("value", [None, "", "  "])
def test_unasked_it_imports_nothing_of_the_engine(value: str | None) -> None:
    env = {} if value is None else {"KVBENCH_EVICTION": value}
    subprocess.run([sys.executable, "-c", QUIET], env=env, check=True, timeout=180)
