"""The measurements of ``make kvpress``, without kvpress: bytes, lines, and scoring from a cache."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.engines.kvpress_env import child
from tests.engines.conftest import RealModel

ROOT = Path(__file__).resolve().parents[2]


def test_bytes_are_those_of_the_storage_not_of_the_view() -> None:
    """Two layers; of one key tensor of 4 × 10 floats only half is shown, but all of it is held."""
    whole = torch.zeros(4, 10)
    layers = [
        SimpleNamespace(keys=whole[:2], values=torch.zeros(2, 10)),
        SimpleNamespace(keys=torch.zeros(2, 10), values=torch.zeros(2, 10)),
    ]
    assert child.cache_bytes(SimpleNamespace(layers=layers)) == (40 + 20 + 20 + 20) * 4


def test_a_line_tells_policy_ratio_tokens_bytes_and_perplexities() -> None:
    line = child.as_text(child.PolicyRow("KnormPress", 0.5, 1250, 27 << 20, (22.88, 7.6)))
    assert line.split() == ["KnormPress", "0.50", "1250", "27.0", "22.88", "/", "7.60"]


def test_the_texts_differ_and_are_long_enough() -> None:
    texts = [child.prose(part) for part in range(3)]
    assert len(set(texts)) == 3
    assert all(len(text) == 40_000 for text in texts)


def test_the_set_up_is_a_shell_script_that_can_be_read() -> None:
    subprocess.run(["/bin/sh", "-n", str(ROOT / "requirements" / "kvpress.sh")], check=True)


@pytest.mark.engine
def test_scoring_from_a_whole_cache_equals_one_pass_over_the_text(real_model: RealModel) -> None:
    """60 tokens prefilled, 40 scored: 60 are kept, at 23,040 B per token."""
    assert math.isclose(real_model.whole, real_model.cached, rel_tol=0.02)
    assert (real_model.kept_tokens, real_model.kept_bytes) == (60, 60 * 23_040)
