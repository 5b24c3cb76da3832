"""The main job on the real engine: `kvbench bench smoke`, from launch to report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@pytest.fixture
def bench(real_bench: dict[str, Any]) -> dict[str, Any]:
    return real_bench


def test_both_variants_are_measured(bench: dict[str, Any]) -> None:
    assert [row["variant"] for row in bench["rows"]][:2] == ["fp16", "fp8"]
    assert [row["status"] for row in bench["rows"]] == ["sealed"] * 5


def test_the_engine_grants_what_theory_predicts_to_the_block(bench: dict[str, Any]) -> None:
    granted = {
        pool["variant"]: (
            pool["granted"]["num_blocks"],
            pool["granted"]["kv_cache_tokens"],
            pool["granted"]["block_size"],
            pool["agrees"],
        )
        for pool in bench["kv"]
        if pool["variant"] in ("fp16", "fp8")
    }
    # 117,964,800 B ÷ (128 tokens × 23,040 B) = 40 blocks; half the bytes per token, twice that.
    assert granted == {"fp16": (40, 5120, 128, True), "fp8": (80, 10_240, 128, True)}


def test_prompts_had_their_length_outputs_were_pinned_and_nothing_was_cached(
    bench: dict[str, Any],
) -> None:
    for row in bench["rows"]:
        metrics = row["metrics"]
        assert metrics["completed"] == 10
        assert metrics["failed"] == 0
        assert metrics["prompt_tokens"] == 10 * 256
        assert metrics["output_tokens"] == 10 * 16
        assert metrics["prefix_cache_hit_rate"] in (None, 0.0)
        assert not [v for v in row["verdicts"] if v["verdict"] == "invalid"]


def test_kv_in_use_stays_within_what_the_requests_can_hold(bench: dict[str, Any]) -> None:
    # Four requests of 272 tokens hold at most 3 blocks each, of 39 usable ones in 16 bit.
    usable = {"fp16": 39, "fp8": 79, "e5m2": 79, "random": 39, "scrambled": 39}
    peaks = {row["variant"]: row["metrics"]["kv_usage_peak"] or 0.0 for row in bench["rows"]}
    for variant, peak in peaks.items():
        assert peak <= 12 / usable[variant] + 1e-9
    # A load takes few seconds; on a machine that stalls for one of them a reading may be missed.
    assert sum(peak > 0 for peak in peaks.values()) >= 3


def test_the_memory_ledger_closes(bench: dict[str, Any]) -> None:
    # What the workers held before the weights can be read for a fraction of a second only: a
    # machine that stalls misses it at one start or another, and the ledger names another meter.
    closing = [ledger for ledger in bench["ledgers"] if ledger["meter"] == "workers"]
    assert len(closing) >= 2
    for ledger in closing:
        assert abs(ledger["remainder_fraction"]) < 0.05


def test_the_report_is_one_page_that_stands_alone(bench: dict[str, Any]) -> None:
    page = Path(bench["report"])
    text = page.read_text(encoding="utf-8")
    assert "5,120" in text
    assert "10,240" in text
    assert "--kv-cache-dtype fp8" in text
    assert not re.findall(r"""(?:src|href|url\()\s*=?\s*["']?(?:https?:)?//""", text)
    assert re.findall(r"<script[^>]*>", text) == ["<script>"]  # its own: sorting and filtering
    assert list(page.parent.glob("*.png"))


def test_the_log_of_each_server_is_kept_with_its_trial(bench: dict[str, Any]) -> None:
    for row in bench["rows"]:
        log = Path(bench["run"]) / row["trial"] / "server.log"
        assert "KV cache size" in log.read_text(encoding="utf-8", errors="replace")


def test_the_harness_itself_takes_little_of_the_time(bench: dict[str, Any]) -> None:
    record = json.loads((Path(bench["run"]) / "bench.json").read_text())
    parts = ("server_startup_s", "load_s", "quality_s", "server_stop_s")
    own_s = record["wall_s"] - sum(record[part] for part in parts)
    # 3 % on two quiet cores.
    assert own_s / record["wall_s"] < 0.1
