"""The stand-in as pytest fixtures: import them into a conftest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.standin.process import StandIn, standin_server


@pytest.fixture(scope="session")
def standin() -> Iterator[StandIn]:
    """One stand-in for all tests; how a request is answered is part of its URL."""
    with standin_server() as server:
        yield server


@pytest.fixture
def own_standin() -> Iterator[StandIn]:
    """A stand-in for one test alone, to be counted on or to be ended."""
    with standin_server() as server:
        yield server
