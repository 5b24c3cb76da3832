"""The engine's own parser takes every command line that a scenario of ours can produce."""

from __future__ import annotations

import pytest

from harness.execute.strategies import CPU_KV_DTYPES
from tests.engines.installed import ROOT, Installed


@pytest.mark.engine
def test_the_engines_parser_accepts_every_variant_of_every_scenario(installed: Installed) -> None:
    assert len(installed.complaints) > 40
    assert "kv-cache-dtyp" in installed.refusal
    assert {name: why for name, why in installed.complaints.items() if why is not None} == {}
    # What kvbench refuses on the engine's behalf is what the engine itself lists.
    assert installed.cpu_kv_dtypes == CPU_KV_DTYPES


@pytest.mark.engine
def test_the_flags_that_ship_are_those_of_the_installed_engine(installed: Installed) -> None:
    assert installed.flags == (ROOT / "harness" / "data" / "vllm_flags.json").read_text()
