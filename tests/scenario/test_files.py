"""The scenario files that ship: they load in both profiles and cite claims that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.report.claims import CLAIMS
from harness.scenario import PROFILES, expand, load_scenario

FILES = sorted((Path(__file__).resolve().parents[2] / "scenarios").glob("*.yaml"))
STRATEGIES = (
    "attention_heads",
    "capacity_cliff",
    "cpu_offload",
    "kv_dtypes",
    "memory_growth",
    "paged_vs_preallocated",
    "prefix_sharing",
    "sliding_window",
)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_loads_and_is_named_as_it_says(path: Path, profile: str) -> None:
    scenario = load_scenario(path, profile)
    assert scenario.name == path.stem
    assert scenario.question
    assert expand(scenario)
    assert all(claim in CLAIMS for claim in scenario.claims)


def test_every_strategy_has_its_file_cites_a_claim_and_states_its_pool() -> None:
    by_name = {path.stem: path for path in FILES}
    for name in STRATEGIES:
        for profile in PROFILES:
            scenario = load_scenario(by_name[name], profile)
            assert scenario.claims, name
            assert scenario.kv_budget.value_bytes, (name, profile)
