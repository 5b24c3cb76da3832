"""Sweeps of which this device takes a part, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_commands import home, kvbench, scenario

__all__ = ["scenario"]


@pytest.mark.usefixtures("fake_engine")
def test_a_sweep_of_which_some_is_skipped_is_exit_0_and_says_so(
    scenario: Path, tmp_path: Path
) -> None:
    words = ("--set", "variants.fp4={kv_cache_dtype: nvfp4}")
    done = kvbench("bench", str(scenario), "--profile", "cpu", *words, cwd=tmp_path, env=home())
    assert done.returncode == 0, done.stderr
    assert "fp4 was skipped" in done.stdout
    assert "lists auto, fp8, fp8_e4m3, fp8_e5m2" in " ".join(done.stdout.split())


def test_a_plan_counts_what_will_run_and_says_what_will_not(scenario: Path) -> None:
    words = ("--set", "variants.fp4={kv_cache_dtype: nvfp4}", "--set", "quality.num_prompts=2")
    done = kvbench("plan", str(scenario), "--profile", "cpu", *words)
    assert done.returncode == 0, done.stderr
    head = done.stdout.splitlines()[2]
    assert head.startswith("2 trials in 2 server launches, about ")
    assert head.endswith("; 1 variant will be skipped here")
    assert "to each variant that runs once and to the baseline twice" in done.stdout
    # What would be asked is told all the same, with the reason.
    assert "will be skipped: the CPU backend of vLLM lists" in done.stdout


@pytest.mark.usefixtures("fake_engine")
def test_a_sweep_of_which_all_is_skipped_is_exit_1_with_the_reason(
    scenario: Path, tmp_path: Path
) -> None:
    words = (
        "--set",
        "variants={fp4: {kv_cache_dtype: nvfp4}, int8: {kv_cache_dtype: int8_per_token_head}}",
        "--set",
        "baseline=fp4",
    )
    done = kvbench("bench", str(scenario), "--profile", "cpu", *words, cwd=tmp_path, env=home())
    assert done.returncode == 1
    assert "no trial could be measured" in done.stderr
    assert "lists auto, fp8, fp8_e4m3, fp8_e5m2" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
