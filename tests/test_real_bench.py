"""The main job on the real engine: `kvbench bench smoke`, from launch to report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.engines.doctor import engine_processes

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One real run: two servers, two KV dtypes, the embedded model."""
    folder = tmp_path_factory.mktemp("bench")
    before = set(engine_processes())
    words = ["bench", "smoke", "--profile", "cpu", "--json", "--out", str(folder / "results")]
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli.app", *words, "--reports", str(folder / "reports")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    left = set(engine_processes()) - before
    assert not [pid for pid in left if psutil.pid_exists(pid)]
    return {"stderr": done.stderr, "folder": folder, **json.loads(done.stdout)}


def test_both_variants_are_measured(bench: dict[str, Any]) -> None:
    assert [(row["variant"], row["status"]) for row in bench["rows"]] == [
        ("fp16", "sealed"),
        ("fp8", "sealed"),
    ]


def test_the_engine_grants_what_theory_predicts_to_the_block(bench: dict[str, Any]) -> None:
    granted = {
        pool["variant"]: (
            pool["granted"]["num_blocks"],
            pool["granted"]["kv_cache_tokens"],
            pool["granted"]["block_size"],
            pool["agrees"],
        )
        for pool in bench["kv"]
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
    assert 0 < bench["rows"][0]["metrics"]["kv_usage_peak"] <= 12 / 39 + 1e-9
    assert 0 < bench["rows"][1]["metrics"]["kv_usage_peak"] <= 12 / 79 + 1e-9


def test_the_memory_ledger_closes(bench: dict[str, Any]) -> None:
    for ledger in bench["ledgers"]:
        assert ledger["meter"] == "workers"
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
    parts = record["server_startup_s"] + record["load_s"] + record["server_stop_s"]
    assert (record["wall_s"] - parts) / record["wall_s"] < 0.05
