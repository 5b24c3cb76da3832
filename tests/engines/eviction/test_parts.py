"""The parts inside vLLM, with the engine's own classes: registries, scheduler side, builders.

Marked ``engine`` since they need vLLM, though no server is started.
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


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What the checks of ``parts.py`` found, in a process of its own: vLLM warns and is heavy."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.eviction.parts"],
        cwd=ROOT,
        env={**os.environ, "KVBENCH_EVICTION": "sinks=20,window=100", "VLLM_PLUGINS": ""},
        capture_output=True,
        check=False,
        timeout=300,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_stock_specs_stay_registered_beside_ours(told: dict[str, Any]) -> None:
    assert told["managers"] == {
        "SinkWindowSpec": "SinkWindowManager",
        "FullAttentionSpec": "FullAttentionManager",
        "SlidingWindowSpec": "SlidingWindowManager",
    }


def test_every_other_backend_refuses_and_ours_keep_the_stock_names(
    told: dict[str, Any],
) -> None:
    assert told["wired"] == ["CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN"]
    assert told["names"] == told["wired"]
    assert {"FLASHINFER", "FLEX_ATTENTION", "CPU_MLA", "FLASHMLA"} <= set(told["refusing"])
    assert told["left_alone"] == ["CUSTOM", "NO_ATTENTION", "TORCH_SDPA"]


def test_graph_support_and_block_sizes_are_the_stock_ones(told: dict[str, Any]) -> None:
    assert told["same_as_stock"] == dict.fromkeys(told["wired"], True)


def test_the_spec_caps_a_request_at_window_chunk_and_sinks(told: dict[str, Any]) -> None:
    """Blocks of 32, sinks 20 → 1 block, W = 100, 256 tokens in flight.

    ceil((99 + 256) / 32) + 1 = 13 for the window, 14 with the sinks; a context of 96 tokens
    never needs more than its 3 blocks.
    """
    assert told["caps"] == {"4096": 14, "96": 3}
    assert told["prefix_cacheable"] is False


def test_layers_with_a_window_keep_their_spec(told: dict[str, Any]) -> None:
    assert told["specs"] == {
        "full": "SinkWindowSpec",
        "window": "SlidingWindowSpec",
        "full, promoted window": "FullAttentionSpec",
    }


def test_a_plain_window_never_shares_a_group_with_ours(told: dict[str, Any]) -> None:
    assert told["uniform"] == {"alike": True, "with a plain window": False}


@pytest.mark.parametrize("backend", ["CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN"])
def test_the_worker_reads_only_blocks_that_the_scheduler_still_holds(
    told: dict[str, Any], backend: str
) -> None:
    """Random requests through the real manager and the backend's real builder, step by step."""
    found = told["replay"][backend]
    assert found["rows"] > 3000
    assert found["evicting_rows"] > 1000
    assert found["mismatches"] == 0
    assert found["freed_reads"] == 0
    assert found["over_the_cap"] == 0
    assert found["blocks_left"] == 0
    assert found["buffers_moved"] is False


def test_the_builder_refuses_a_layer_that_the_rule_missed(told: dict[str, Any]) -> None:
    assert "the rule is not in force in the layers" in told["missed_layer"]


def test_a_changed_block_size_is_refused(told: dict[str, Any]) -> None:
    assert "changed the block size from 32 to 64" in told["changed_block"]
