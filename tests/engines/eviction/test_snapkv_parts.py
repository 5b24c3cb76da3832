"""The rule by score inside the engine's own parts: block pool, manager, builder, kernel, cache.

Marked ``engine`` since it needs vLLM, though no server is started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[3]
ENV = {
    "KVBENCH_EVICTION": "snapkv=96,observe=16",
    "VLLM_PLUGINS": "",
    # The replay's operations are tiny: threads would only wait for each other.
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What the checks of ``snapkv_parts.py`` found, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.eviction.snapkv_parts", "500"],
        cwd=ROOT,
        env={**os.environ, **ENV},
        capture_output=True,
        check=False,
        timeout=300,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("unit", ["32", "128"])
def test_what_stays_scored_highest_and_every_answer_is_attention_over_it(
    told: dict[str, Any], unit: str
) -> None:
    """Random requests through the real manager, builder and kernel, thousands of rows."""
    found = told["replay"][unit]
    assert found["rows"] == 2000
    assert found["cut_prompts"] >= 20
    assert found["cut_rows"] > 400
    assert found["preempted"] >= 20
    assert found["better_ones_gone"] == 0
    assert found["observers_lost"] == 0
    assert found["not_distinct"] == 0
    assert found["unknown_keys"] == 0
    assert found["wrong_answers"] == 0
    assert found["inputs_changed"] == 0


@pytest.mark.parametrize("unit", ["32", "128"])
def test_no_freed_block_is_read_and_every_block_comes_back(told: dict[str, Any], unit: str) -> None:
    """Freed blocks hold NaN, so one that was read would show in an answer too."""
    found = told["replay"][unit]
    assert found["freed_reads"] == 0
    assert found["blocks_left"] == 0
    assert found["remembered"] == 0


def test_the_budget_is_rounded_up_to_whole_blocks(told: dict[str, Any]) -> None:
    assert told["kept"] == {"32": 96, "128": 128}


def test_ours_and_the_stock_spec_have_their_own_managers_and_groups(told: dict[str, Any]) -> None:
    assert told["managers"] == {
        "ScoredSpec": "ScoredManager",
        "FullAttentionSpec": "FullAttentionManager",
    }
    assert told["uniform"] == {"alike": True, "with full attention": False}
    assert told["merged"] == {"alike": "ScoredSpec", "with full attention": "not alike"}
    assert told["prefix_cacheable"] is False


def test_only_the_cpu_backend_is_wired_and_keeps_the_stock_name(told: dict[str, Any]) -> None:
    assert told["wired"] == ["CPU_ATTN"]
    assert told["name"] == "CPU_ATTN"
    assert told["kernel_blocks_are_stock"] is True
    for name, said in told["refusing"].items():
        assert f"{name} is not wired to it (wired for SnapKV: CPU_ATTN)" in said


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("other rule", "the rule became snapkv=96,observe=16"),
        ("window", "layers that have a window of their own"),
        ("missed layer", "the rule is not in force in the layers"),
        ("chunked", "chunked prefill"),
        ("changed block", "changed the block size from 32 to 64"),
    ],
)
def test_what_was_not_tested_ends_the_start(told: dict[str, Any], case: str, said: str) -> None:
    assert said in told["refused"][case]
