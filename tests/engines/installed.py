"""What the installed engine says of itself, asked once for all tests that want to know."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import bench_serve
from harness.analysis.metrics import summarize
from harness.engines import vllm
from harness.execute.outline import outline
from harness.record import TrialRecord
from harness.scenario import PROFILES, load_scenario
from tests import records

ROOT = Path(__file__).resolve().parents[2]
#: A command line that no engine may take.
MISSPELT = ("--model", "m", "--kv-cache-dtyp", "fp8")


@dataclass(frozen=True)
class Installed:
    """``complaints`` by command line, null where it is accepted; ``refusal`` is of ``MISSPELT``.

    ``bench`` holds the figures of ``load`` by the arithmetic of ``vllm bench serve``.
    """

    complaints: Mapping[str, str | None]
    refusal: str
    cpu_kv_dtypes: tuple[str, ...]
    flags: str
    load: TrialRecord
    bench: Mapping[str, Any]


def command_lines() -> dict[str, tuple[str, ...]]:
    """One command line per scenario, profile and variant, without the Python and the module."""
    lines: dict[str, tuple[str, ...]] = {}
    for path in sorted((ROOT / "scenarios").glob("*.yaml")):
        for profile in PROFILES:
            scenario = load_scenario(path, profile)
            served = outline(scenario) if scenario.engine == "vllm" else ()
            for item in served:
                # The policies of kvpress are asked of a child of their own.
                if vllm.MODULE in item.command:
                    name = f"{path.stem}/{profile}/{item.trial.variant}"
                    lines[name] = item.command[item.command.index(vllm.MODULE) + 1 :]
    return lines


@pytest.fixture(scope="session")
def installed() -> Installed:
    """One child for all: importing the engine takes seconds."""
    lines, load = command_lines(), records.trial(workload={**records.EXERCISE, "num_prompts": 120})
    duration_s = bench_serve.fields(load, summarize(load))["duration"]
    asked = {
        "lines": [MISSPELT, *lines.values()],
        "bench": {"lists": bench_serve.lists(load), "duration_s": duration_s},
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.engine_parser"],
        input=json.dumps(asked),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    refusal, *complaints = told["complaints"]
    return Installed(
        dict(zip(lines, complaints, strict=True)),
        refusal,
        tuple(told["cpu_kv_dtypes"]),
        told["flags"],
        load,
        told["bench"],
    )
