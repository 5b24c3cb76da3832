"""One real `kvbench bench smoke`, with quality and three variants more, for all tests of it.

A start of the real engine takes ten seconds and more, so the tests of the main job and those of
quality share five. The smoke scenario stays as it ships but for the settings that bound memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import holders

ROOT = Path(__file__).resolve().parents[1]
#: Beside fp16 and fp8. RoPE with base 10 instead of 100,000 scrambles the prompt: the order of its
#: tokens is lost. The questions are the fewest that still tell the caches apart.
SETTINGS = (
    "server.max_num_batched_tokens=512",
    "server.max_num_seqs=8",
    "variants.e5m2={kv_cache_dtype: fp8_e5m2}",
    "variants.random={load_format: dummy, seed: 7}",
    "variants.scrambled={hf_overrides: {rope_parameters: {rope_type: default, rope_theta: 10.0}}}",
    "quality.num_prompts=6",
    "quality.context_tokens=256",
    "quality.answer_tokens=24",
    "quality.judge=off",
    "quality.needles={context_tokens: [192, 384], depths: [0.5, 1]}",
)


@pytest.fixture(scope="session")
def real_bench(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The figures that it printed as JSON, what it said (``stderr``) and where (``folder``)."""
    folder = tmp_path_factory.mktemp("bench")
    words = ["bench", "smoke", "--profile", "cpu", "--json", "--out", str(folder / "results")]
    words += [word for setting in SETTINGS for word in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli.app", *words, "--reports", str(folder / "reports")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=850,
    )
    assert done.returncode == 0, done.stderr
    # A server and all that it started write to its log. Whoever else runs an engine here does not.
    with (folder / "held").open("w"):
        assert holders(folder) == [os.getpid()]
    assert holders(folder) == []
    return {"stderr": done.stderr, "folder": folder, **json.loads(done.stdout)}
