"""URLs of servers and judges: what can't be asked or stored is refused where it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.errors import InputError, ScenarioError
from harness.execute.judging import api_key, check_url
from harness.quality.judge import bare_url
from harness.scenario import load_scenario
from harness.scenario.address import address_fault

GOOD = [
    "http://host/v1",
    "https://api.example.com:8443/v1",
    "http://127.0.0.1:8000",
    "http://[::1]:8000/v1",
    "http://my_host.local/v1/",
]
#: No URL of a server, or one that no client can open.
BAD = [
    *("", "host", "host:8000/v1", "ftp://host/v1", "http://", "http:///v1", "//host/v1"),
    *("http://h:99999/v1", "http://h:0/v1", "http://h:80:80/v1", "http://h:x/v1", "http://[::1"),
    *(
        "http://h h/v1",
        "http://h/v 1",
        " http://h/v1",
        "http://h/v1\n",
        "http://h/\x00",
        "http://h\t",
    ),
    *("http://hö/v1", "http://h/\u2028", "http://a,b/v1", "http://%zz/v1"),
]
SECRET = [
    "http://u:p@host/v1",
    "http://u@host/v1",
    "http://@host/v1",
    "http://host/v1?api_key=sk-123",
    "http://host/v1#tok=sk-123",
]
PLAIN: dict[str, Any] = {
    "schema": 1,
    "name": "q",
    "model": "m",
    "baseline": "a",
    "variants": {"a": {}},
    "workloads": [{"context_tokens": 512, "output_tokens": 16, "num_prompts": 4, "concurrency": 2}],
}


@pytest.mark.parametrize("url", GOOD)
def test_a_bare_url_of_a_server_passes(url: str) -> None:
    assert address_fault(url, "server", "KEY") is None
    assert check_url(url) == url.rstrip("/")
    # It is stored as it was given.
    assert bare_url(url) == url


@pytest.mark.parametrize("url", [*BAD, 5, None, ["http://h"]])
def test_what_no_client_can_open_is_no_url(url: object) -> None:
    fault = address_fault(url, "server", "KEY")
    assert fault is not None
    assert "is no URL of a server" in fault.what
    assert fault.legal == ["http://host:port/v1"]


@pytest.mark.parametrize("url", SECRET)
def test_a_url_with_a_secret_is_refused_without_repeating_it(url: str) -> None:
    fault = address_fault(url, "judge", "KVBENCH_JUDGE_API_KEY")
    assert fault is not None
    assert "would be stored" in fault.what
    assert "sk-123" not in fault.what
    assert "KVBENCH_JUDGE_API_KEY" in (fault.next_move or "")


@pytest.mark.parametrize("url", [*BAD, *SECRET])
def test_a_judge_is_refused_by_its_option(url: str) -> None:
    with pytest.raises(InputError) as caught:
        check_url(url)
    assert caught.value.where == "--judge-url"


@pytest.mark.parametrize("url", [url for url in (*BAD, *SECRET) if url])
def test_a_scenarios_judge_is_refused_with_its_line_when_the_file_is_read(
    url: str, tmp_path: Path
) -> None:
    path = tmp_path / "q.yaml"
    quality = {"judge": {"url": url, "model": "m"}}
    path.write_text(yaml.safe_dump({**PLAIN, "quality": quality}, sort_keys=False))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "url:" in text)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, "cpu")
    assert f"q.yaml:{line}" in str(caught.value.where)
    assert "quality.judge.url" in str(caught.value.where)


@pytest.mark.parametrize("url", [*BAD, *SECRET])
def test_an_attached_server_is_held_to_the_same(url: str, tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(yaml.safe_dump(PLAIN))
    with pytest.raises(ScenarioError):
        load_scenario(path, "cpu", attach=url)


@pytest.mark.parametrize("key", ["sk-1\n", " sk-1", "sk-ö", "sk-\x1b[0m", "sk…"])
def test_a_judges_key_that_no_header_can_carry_is_told_without_it(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVBENCH_JUDGE_API_KEY", key)
    with pytest.raises(InputError) as caught:
        api_key()
    assert "sk" not in str(caught.value)
    assert caught.value.where == "KVBENCH_JUDGE_API_KEY"
