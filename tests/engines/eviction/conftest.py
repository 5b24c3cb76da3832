"""The stock engine, started once for all checks that hold against it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.eviction.driving import STOCK, Seen, served


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("eviction")


@pytest.fixture(scope="session")
def stock(folder: Path) -> Seen:
    """The engine without our plugin."""
    return served(folder, STOCK, decoding=True)
