"""A run against a server that was running already says nothing of one that it did not start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import kvbench
from tests.execute.test_local import CONFIG, SCENARIO
from tests.standin.process import standin_server

#: What is true of a server that kvbench launches on a CPU, and of no other.
FALSE_HERE = ("NO GPU", "CPU profile", "this machine's processor", "no GPU", "taken without a GPU")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, standin: Any) -> tuple[Path, str, str]:
    """A stored attached run, what the bench printed on stdout, and on stderr."""
    place = tmp_path_factory.mktemp("attached")
    model = place / "a-model-of-the-file"
    model.mkdir()
    (model / "config.json").write_text(CONFIG)
    (place / "demo.yaml").write_text(SCENARIO.format(model=model))
    done = kvbench("bench", "demo.yaml", "--url", standin.url(), cwd=place)
    assert done.returncode == 0, done.stderr
    folder = next(place.glob("results/demo/*"))
    return folder, done.stdout, done.stderr


def test_banner_table_page_and_comparison_say_attached(run: tuple[Path, str, str]) -> None:
    folder, table, banner = run
    place = folder.parents[2]
    assert "attached: http://127.0.0.1" in banner
    # Nothing is launched, so nothing is called a launch.
    assert "1 trial on a server that is running already" in banner
    assert "round on the running server 1/1: variant attached" in banner
    assert "launch" not in banner.partition("trial 1/1")[0].replace("launches nothing", "")
    assert "ATTACHED  demo" in table
    compared = kvbench("compare", str(folder), str(folder), cwd=place)
    assert compared.returncode == 0, compared.stderr
    pages = [path.read_text() for path in place.glob("reports/**/*.html")]
    assert len(pages) >= 2
    for text in (banner, table, compared.stdout, *pages):
        assert [words for words in FALSE_HERE if words in text.replace("&#39;", "'")] == []
    assert "attached: a server that was running already" in pages[0] + pages[1]
    # The model of the scenario's file was never served.
    assert all("a-model-of-the-file" not in text for text in (compared.stdout, table, *pages))
    assert "standin" in compared.stdout
    # 23,040 bytes are what a token of that model would take.
    assert all("23,040" not in text for text in (table, *pages))


def test_a_server_of_yours_gets_the_key_of_the_environment_and_nothing_stores_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "demo.yaml").write_text(SCENARIO.format(model="m"))
    key = "sk-for-this-one"
    with standin_server("--api-key", key) as server:
        words = ("bench", "demo.yaml", "--url", server.url())
        done = kvbench(*words, cwd=tmp_path, env={"OPENAI_API_KEY": key})
        refused = kvbench(*words, cwd=tmp_path, env={"OPENAI_API_KEY": "sk-wrong"})
    assert done.returncode == 0, done.stderr
    assert refused.returncode == 1
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if key.encode() in path.read_bytes()] == []


def test_the_address_is_not_printed_before_it_was_checked(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text(SCENARIO.format(model="m"))
    done = kvbench("bench", "demo.yaml", "--url", "http://me:hunter2@host/v1", cwd=tmp_path)
    assert done.returncode == 2
    assert "attached:" not in done.stderr


def test_figures_as_json_name_the_profile_attached(
    run: tuple[Path, str, str], tmp_path: Path
) -> None:
    done = kvbench("report", str(run[0]), "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["profile"] == "attached"
