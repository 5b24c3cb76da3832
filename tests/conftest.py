"""Fixtures that several rooms share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from harness.execute import alone
from tests.standin.fixture import own_standin, standin

__all__ = ["own_standin", "standin"]

ROOT = Path(__file__).resolve().parents[1]

# The machine is shared: how long an example takes says nothing about the code. The same examples
# every time, so that a failure is the change's own.
settings.register_profile(
    "shared", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared")


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Servers that are launched are stand-ins, which behave as ``FAKE_ENGINE`` says."""
    monkeypatch.setenv("KVBENCH_ENGINE_PYTHON", str(ROOT / "tests" / "fake_engine" / "python"))
    monkeypatch.setenv("KVBENCH_TEST_PYTHON", sys.executable)
    monkeypatch.delenv("FAKE_ENGINE", raising=False)
    monkeypatch.delenv("FAKE_ENGINE_FP8", raising=False)
    # Whatever else is measured on this machine is no company of a test.
    monkeypatch.setattr(alone, "cache_root", lambda: tmp_path / "cache")
    # An inherited proxy must never see what is meant for 127.0.0.1.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
