"""The engine's own parser takes every command line that a scenario of ours can produce."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.engines import vllm
from harness.execute.outline import outline
from harness.execute.strategies import CPU_KV_DTYPES
from harness.scenario import PROFILES, load_scenario

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))


def command_lines() -> dict[str, tuple[str, ...]]:
    """One command line per scenario, profile and variant, without the Python and the module."""
    lines: dict[str, tuple[str, ...]] = {}
    for path in SCENARIOS:
        for profile in PROFILES:
            scenario = load_scenario(path, profile)
            served = outline(scenario) if scenario.engine == "vllm" else ()
            for item in served:
                # The policies of kvpress are asked of a child of their own.
                if vllm.MODULE in item.command:
                    name = f"{path.stem}/{profile}/{item.trial.variant}"
                    lines[name] = item.command[item.command.index(vllm.MODULE) + 1 :]
    return lines


def ask_the_engine(lines: list[tuple[str, ...]]) -> Any:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("engine_parser.py"))],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.engine
def test_the_engines_parser_accepts_every_variant_of_every_scenario() -> None:
    lines = command_lines()
    assert len(lines) > 40
    misspelt = ("--model", "m", "--kv-cache-dtyp", "fp8")
    answer = ask_the_engine([misspelt, *lines.values()])
    refused, *complaints = answer["complaints"]
    assert "kv-cache-dtyp" in refused
    assert [
        f"{name}: {complaint}"
        for name, complaint in zip(lines, complaints, strict=True)
        if complaint is not None
    ] == []
    # What kvbench refuses on the engine's behalf is what the engine itself lists.
    assert tuple(answer["cpu_kv_dtypes"]) == CPU_KV_DTYPES


@pytest.mark.engine
def test_the_flags_that_ship_are_those_of_the_installed_engine() -> None:
    # The documented command, from the repository's root.
    done = subprocess.run(
        [sys.executable, "-m", "tests.data.vllm_flags"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == (ROOT / "harness" / "data" / "vllm_flags.json").read_text()
