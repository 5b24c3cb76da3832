"""Predictions against the engine's own planning functions, on the CPU, to the block.

``KVBENCH_ENGINE_PLAN=all`` asks for every case (some minutes); the result is told in
docs/theory.md. By default one case of each kind of layout is asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.specs.model import model_spec
from harness.theory.capacity import predict_capacity, settings_from_flags
from tests.theory.engine_cases import ALL, BUDGET, FAST, EngineCase

CASES = ALL if os.environ.get("KVBENCH_ENGINE_PLAN") == "all" else FAST
PLANNER = Path(__file__).with_name("engine_plan.py")


def cpu_features() -> frozenset[str]:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    found = {"amx"} if "amx_tile" in flags else set()
    return frozenset(found | ({"avx512_bf16"} if "avx512_bf16" in flags else set()))


@pytest.fixture(scope="module")
def plans() -> dict[str, dict[str, Any]]:
    """All plans from one process: building the engine's imports costs more than any one plan."""
    asked = json.dumps([case.as_json() for case in CASES])
    environment = {**os.environ, "PYTHONPATH": "", "VLLM_TARGET_DEVICE": "cpu"}
    done = subprocess.run(
        [sys.executable, str(PLANNER)],
        input=asked,
        capture_output=True,
        text=True,
        env=environment,
        timeout=1500,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = {plan["name"]: plan for plan in map(json.loads, lines)}
    assert found, done.stderr[-3000:]
    return found


@pytest.mark.engine
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_engine_plans_what_was_predicted(
    case: EngineCase, plans: dict[str, dict[str, Any]]
) -> None:
    plan = plans[case.name]
    assert "error" not in plan, plan["error"]
    settings = settings_from_flags(case.flags, "cpu", cpu_features=cpu_features())
    predicted = predict_capacity(model_spec(case.config, name=case.name), settings, BUDGET)
    assert (
        predicted.num_blocks,
        predicted.kv_cache_tokens,
        predicted.max_concurrency,
        predicted.max_model_len,
    ) == (
        plan["num_gpu_blocks"],
        plan["kv_cache_size_tokens"],
        plan["kv_cache_max_concurrency"],
        plan["max_model_len"],
    )
