"""kvpress's process with the stand-in's policy and a tiny model, started once for all tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.engines.kvpress import KvpressEngine, KvpressSpec
from tests.engines import tiny_llama

FAKE = Path(__file__).resolve().parents[1] / "fake_kvpress"


@pytest.fixture(scope="session")
def kvpress_child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvpressEngine]:
    """It answers prompt by prompt and keeps nothing of one, so every test may ask it."""
    model = tiny_llama.write(tmp_path_factory.mktemp("tiny-llama"))
    log = tmp_path_factory.mktemp("logs") / "kvpress.log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVBENCH_KVPRESS_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", str(FAKE))
        started = KvpressEngine.launch(KvpressSpec(str(model)), log, timeout_s=120)
    yield started
    started.stop()
