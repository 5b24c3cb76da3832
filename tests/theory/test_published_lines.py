"""Startup lines of real servers, as others published them, against the prediction.

The printed memory has two decimals, so the truth lies within ± 0.005 GiB of it, and the printed
concurrency within ± 0.005 of itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.specs.model import ModelSpec, model_spec, shipped_config
from harness.theory.capacity import EngineSettings, predict_capacity
from harness.theory.weights import weight_footprint
from harness.units import GIB

FILE = Path(__file__).parents[1] / "data" / "kv_capacity.json"
CASES: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["cases"]
#: Its 3.46 GiB are less than the checkpoint's 2.13·10⁹ parameters take in 16 bits (3.96 GiB):
#: by the size of the vision tower's layers, which that server did not load.
WITHOUT_ITS_TOWER = "K069"
PLAIN = [
    case
    for case in CASES
    if case["quantization"] is None and case["weights_gib"] and case["id"] != WITHOUT_ITS_TOWER
]


def by_id(case: dict[str, Any]) -> str:
    return str(case["id"])


def settings_of(case: dict[str, Any]) -> EngineSettings:
    return EngineSettings(
        kv_cache_dtype=case["kv_cache_dtype"],
        dtype=case["model_dtype"] or "auto",
        max_model_len=case["max_model_len"],
        max_num_batched_tokens=case["max_num_batched_tokens"],
        tensor_parallel_size=case["tensor_parallel_size"],
        pipeline_parallel_size=case["pipeline_parallel_size"],
        num_speculative_tokens=case["num_speculative_tokens"],
        enable_prefix_caching=case["enable_prefix_caching"],
        # All servers with windows among them are older than 0.26, which began to charge two steps.
        async_scheduling=False,
    )


def concurrency(model: ModelSpec, case: dict[str, Any], gib: float) -> float:
    found = predict_capacity(model, settings_of(case), int(gib * GIB)).max_concurrency
    assert found is not None
    return found


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_the_printed_concurrency_lies_between_the_predictions(case: dict[str, Any]) -> None:
    model = model_spec(case["config"], name=case["model"])
    low = concurrency(model, case, case["kv_cache_memory_gib"] - 0.005)
    high = concurrency(model, case, case["kv_cache_memory_gib"] + 0.005)
    assert low - 0.005 <= case["printed"]["max_concurrency"] <= high + 0.005


@pytest.mark.parametrize("case", [case for case in CASES if case["block_size_printed"]], ids=by_id)
def test_the_aligned_block_is_the_printed_one(case: dict[str, Any]) -> None:
    model = model_spec(case["config"], name=case["model"])
    predicted = predict_capacity(model, settings_of(case), None)
    assert predicted.block_size == case["block_size_printed"]


@pytest.mark.parametrize("case", PLAIN, ids=by_id)
def test_plain_weights_are_within_two_per_cent_of_the_printed_ones(case: dict[str, Any]) -> None:
    config = shipped_config(case["model"])
    assert config is not None
    weights = weight_footprint(model_spec(config, name=case["model"]), settings_of(case))
    assert weights.bytes_per_gpu / GIB == pytest.approx(case["weights_gib"], rel=0.02)


def test_a_vision_tower_left_out_explains_the_one_that_differs() -> None:
    case = next(case for case in CASES if case["id"] == WITHOUT_ITS_TOWER)
    config = shipped_config(case["model"])
    assert config is not None
    weights = weight_footprint(model_spec(config, name=case["model"]), settings_of(case))
    # 24 layers of 4 · 1,024² + 2 · 1,024 · 4,096 elements, 2 bytes each: 0.5625 GiB.
    layers = 24 * (4 * 1024**2 + 2 * 1024 * 4096) * 2 / GIB
    assert weights.bytes_per_gpu / GIB - layers == pytest.approx(case["weights_gib"], rel=0.01)
