"""Fixtures that several rooms share."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from harness.load import watch
from tests.engines.installed import installed
from tests.engines.kvpress_child import kvpress_child
from tests.fake_engine import stand_in_for_engine
from tests.real_bench import real_bench
from tests.standin.fixture import own_standin, standin

__all__ = ["installed", "kvpress_child", "own_standin", "real_bench", "standin"]

# The machine is shared: how long an example takes says nothing about the code. The same examples
# every time, so that a failure is the change's own.
settings.register_profile(
    "shared", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared")


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> None:
    """A run in the background ignores SIGINT, and so would every bench that a test starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def no_full_collection_before_a_load() -> Iterator[None]:
    """Loads that are played in this process set aside what exists without collecting it first.

    With all that a whole run has imported, that collection takes 0.4 s and more of every load;
    a bench that is a process of its own has it, and ``tests/load/test_watch.py``.
    """
    kept = SimpleNamespace(collect=lambda: 0, freeze=gc.freeze, unfreeze=gc.unfreeze)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "gc", kept)
        yield


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Servers that are launched are stand-ins, which behave as ``FAKE_ENGINE`` says."""
    stand_in_for_engine(monkeypatch, tmp_path / "cache")
