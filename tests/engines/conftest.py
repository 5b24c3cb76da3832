"""The real embedded model, asked once for all tests that ask it through transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.engines import embedded


@dataclass(frozen=True)
class RealModel:
    """What the embedded model said and weighed; see ``ask_transformers.py``.

    ``whole`` and ``cached`` are perplexities of the same tokens, in one pass and behind a prefill.
    """

    folder: Path
    dtype: str
    capital: str
    whole: float
    cached: float
    kept_tokens: int
    kept_bytes: int


@pytest.fixture(scope="session")
def real_model() -> RealModel:
    """One child for all: importing torch and loading the model take seconds."""
    folder = embedded.ensure("smollm2-135m-instruct")
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.ask_transformers", str(folder)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return RealModel(folder, **json.loads(done.stdout.splitlines()[-1]))
