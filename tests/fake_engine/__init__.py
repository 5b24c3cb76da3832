"""The stand-in for the engine's Python, and how tests are made to start it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.execute import other_benches


def stand_in_for_engine(patch: pytest.MonkeyPatch, cache: Path) -> None:
    """Servers that are launched are stand-ins, which behave as ``FAKE_ENGINE`` says."""
    patch.setenv("KVBENCH_ENGINE_PYTHON", str(Path(__file__).with_name("python")))
    patch.setenv("KVBENCH_TEST_PYTHON", sys.executable)
    for name in ("FAKE_ENGINE", "FAKE_ENGINE_FP8", "FAKE_TOY", "FAKE_TOY_FP8"):
        patch.delenv(name, raising=False)
    # Whatever else is measured on this machine is no company of a test.
    patch.setattr(other_benches, "cache_root", lambda: cache)
    # An inherited proxy must never see what is meant for 127.0.0.1.
    patch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    patch.setenv("http_proxy", "http://127.0.0.1:9")
