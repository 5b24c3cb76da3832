"""The model that a scenario names: odd names are told apart from folders without a crash."""

from __future__ import annotations

import pytest

from harness.engines import hub, models
from harness.errors import ModelFetchError, NotFound


def _no_hub(_name: str) -> None:
    raise ModelFetchError("out of reach")


@pytest.mark.parametrize("name", ["x" * 480, "nobody/" + "y" * 400])
def test_a_name_longer_than_a_file_name_may_be_is_a_hub_id(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(hub, "fetch_config", _no_hub)
    found = models.describe(name)
    assert found.argument == name
    assert found.config is None


@pytest.mark.parametrize("name", ["~nobody-is-called-this/model", "/no/such/folder", "../nowhere"])
def test_a_path_that_is_no_folder_is_said_to_be_none(name: str) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        models.describe(name)
