from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.strategy_names import ServerSetup, change_of, effort_of, setup_of, strategy_of

PLAIN = ServerSetup({}, {})


def of(given: dict[str, Any], *, server: dict[str, Any] | None = None) -> ServerSetup:
    return setup_of({"server": server or {}, "variants": {"mine": given}}, "mine")


@pytest.mark.parametrize(
    ("mine", "theirs", "name", "family", "effort"),
    [
        ({}, {"emulate": "preallocation"}, "paging", "paging", "flags"),
        ({"emulate": "preallocation"}, {}, "preallocation", "paging", "flags"),
        (
            {"env": {"KVBENCH_EVICTION": "sinks=4,window=64"}},
            {},
            "token eviction (sinks=4,window=64)",
            "token eviction",
            "plugin",
        ),
        ({"flags": {"kv_offloading_size": 1}}, {}, "CPU offloading", "CPU offloading", "flags"),
        (
            {"flags": {"hf_overrides": {"sliding_window": 512}}},
            {"flags": {"hf_overrides": {"sliding_window": None}}},
            "sliding window of 512",
            "sliding window",
            "model change",
        ),
        (
            {"flags": {"hf_overrides": {"num_key_value_heads": 1}}},
            {"flags": {"hf_overrides": {"num_key_value_heads": 9}}},
            "1 KV head",
            "KV heads",
            "model change",
        ),
        ({"flags": {"kv_cache_dtype": "int8"}}, {}, "KV dtype int8", "KV dtype", "flags"),
        (
            {"flags": {"enable_prefix_caching": True}},
            {"flags": {"enable_prefix_caching": False}},
            "prefix sharing",
            "prefix sharing",
            "flags",
        ),
        (
            {"flags": {"enable_prefix_caching": False}},
            {"flags": {"enable_prefix_caching": True}},
            "no prefix sharing",
            "prefix sharing",
            "flags",
        ),
        ({"model": "another"}, {}, "other settings", "other settings", "model change"),
        ({"flags": {"max_num_seqs": 4}}, {}, "other settings", "other settings", "flags"),
    ],
)
def test_a_strategy_is_named_by_what_differs_from_the_baseline(
    mine: dict[str, Any], theirs: dict[str, Any], name: str, family: str, effort: str
) -> None:
    found = strategy_of(of(mine), of(theirs))
    assert (found.name, found.family) == (name, family)
    assert effort_of(of(mine), of(theirs)) == effort


def test_a_strategy_of_the_reference_engine_is_named_by_its_cache() -> None:
    static = of({"flags": {"cache": "static"}})
    found = strategy_of(static, PLAIN, "reference")
    assert (found.name, found.kind) == ("static cache instead of growing", "reference")


def test_a_setup_is_the_variants_own_settings_over_those_of_all() -> None:
    scenario = {
        "server": {"max_num_seqs": 4, "kv_cache_dtype": "auto"},
        "env": {"A": 1},
        "variants": {"mine": {"flags": {"kv_cache_dtype": "fp8"}, "env": {"B": 2}, "model": "m"}},
    }
    made = setup_of(scenario, "mine")
    assert made.flags == {"max_num_seqs": 4, "kv_cache_dtype": "fp8"}
    assert (made.env, made.emulate, made.model) == ({"A": "1", "B": "2"}, None, "m")
    assert setup_of(scenario, "absent").flags == scenario["server"]


def test_a_change_is_told_in_the_words_of_a_scenario() -> None:
    mine = ServerSetup(
        {"max_num_seqs": 4, "hf_overrides": {"sliding_window": 8, "architectures": ["X"]}},
        {"KVBENCH_EVICTION": "snapkv=512"},
        model="another",
    )
    theirs = ServerSetup({"max_num_seqs": 4, "hf_overrides": {"architectures": ["X"]}}, {})
    assert change_of(mine, theirs) == (
        "hf_overrides.sliding_window=8, KVBENCH_EVICTION=snapkv=512, model=another"
    )
    assert change_of(theirs, theirs) == "nothing"
    emulated = ServerSetup({}, {}, emulate="preallocation")
    assert change_of(emulated, PLAIN) == "emulated"
    assert change_of(PLAIN, emulated) == "vLLM's own way; the other side is emulated"
