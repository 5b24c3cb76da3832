from __future__ import annotations

import pytest

from harness.engines import attached
from harness.errors import NotFound
from tests.standin.process import StandIn


def test_a_server_tells_its_model(standin: StandIn) -> None:
    found = attached.facts(standin.url(), None)
    assert found.launched is False
    assert found.served_model
    assert found.command == ()


def test_what_answers_but_is_no_such_server_is_told_with_its_status(standin: StandIn) -> None:
    with pytest.raises(NotFound) as caught:
        attached.facts(f"{standin.origin}/no/such/place", None)
    assert "HTTP 404" in str(caught.value)
    assert "OPENAI_API_KEY" in str(caught.value)


def test_a_closed_port_is_told_as_refused() -> None:
    with pytest.raises(NotFound, match="refused"):
        attached.facts("http://127.0.0.1:9/v1", None)


def test_the_root_is_the_url_without_its_version() -> None:
    assert attached.root_url("http://h:1/v1/") == "http://h:1"
    assert attached.root_url("http://h:1") == "http://h:1"
