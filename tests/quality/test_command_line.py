"""A named judge and `kvbench judge`, as typed on the command line; the key ends up nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import store
from tests.quality.judges import always_a, perfect, reply, scripted
from tests.quality.test_bench import CONFIG, SCENARIO
from tests.quality.test_judge_command import good_answers
from tests.quality.toy import serving

KVBENCH = str(Path(sys.executable).with_name("kvbench"))
SECRET = "sk-look-for-me-everywhere"  # noqa: S105

Handler = Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]


def kvbench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command as it is typed, with the key in its environment."""
    env = {**os.environ, "KVBENCH_JUDGE_API_KEY": SECRET, "OPENAI_LOG": "info"}
    return subprocess.run(
        [KVBENCH, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def perfect_once_the_answers_stand(results: Path) -> Handler:
    """The perfect judge of a run that has not begun yet; its first reply blurts the key out."""
    made: list[Handler] = []
    first = threading.Lock()

    def handle(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with first:
            blurts = not made
            if blurts:
                (run,) = (results / "demo").iterdir()
                made.append(scripted(perfect(good_answers(run))))
        if blurts:
            return reply(f"Thank you for {SECRET}, what was the question?")
        return made[0](path, body)

    return handle


def everything_written(*folders: Path) -> dict[str, bytes]:
    return {
        str(file): file.read_bytes()
        for folder in folders
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_the_perfect_judge_is_believed_the_biased_exposed_and_the_key_is_nowhere(
    tmp_path: Path, fake_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TOY_FP8", "noise=0.4")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(CONFIG)
    text = SCENARIO.format(model=tmp_path / "model").replace("  judge: off\n", "")
    (tmp_path / "demo.yaml").write_text(text)
    small = ["repeats=1", "quality.num_prompts=20", "quality.needles=null"]
    with serving(perfect_once_the_answers_stand(tmp_path / "results")) as judge:
        small += [f"quality.judge.url={judge.url}", "quality.judge.model=perfect"]
        words = [word for one in small for word in ("--set", one)]
        ran = kvbench(tmp_path, "bench", "demo.yaml", "--profile", "cpu", *words)
    assert ran.returncode == 0, ran.stderr
    (run,) = (tmp_path / "results" / "demo").iterdir()
    (record,) = store.read_quality(run).judges
    assert (record.head.model, record.head.status) == ("perfect", "sealed")
    assert sum(j.malformed for j in record.judgements) == 1
    (page,) = (tmp_path / "reports" / "demo").rglob("report.html")
    assert "The judge perfect passed its controls." in page.read_text()

    with serving(scripted(always_a)) as judge:
        words = ["judge", str(run), "--judge-url", judge.url, "--judge-model", "biased"]
        told = kvbench(tmp_path, *words)
        as_json = kvbench(tmp_path, *words, "--json")
    assert told.returncode == 0, told.stderr
    assert "The judge biased is not reliable" in told.stdout
    assert "Its verdict on the variants is withheld." in told.stdout
    assert "identical answers called a tie 0 of 4 (80 % needed)" in told.stdout
    assert "prompt and" in told.stdout.replace("\n", " ")
    outcome = json.loads(as_json.stdout)
    assert outcome["reliable"] is False
    assert outcome["variants"][0]["wins"] is None
    assert outcome["prompt_tokens"] == 100 * outcome["questions"]
    # The perfect judge's verdict stands on the page beside it.
    text = page.read_text()
    assert "The judge perfect passed its controls." in text
    assert "non-inferiority at a margin of 10 % is not shown" in text
    assert "The judge biased is not reliable" in text

    with serving(lambda _p, _b: (401, {"error": {"message": f"bad key {SECRET}"}})) as judge:
        refused = kvbench(tmp_path, *words[:2], "--judge-url", judge.url, "--judge-model", "no")
    assert refused.returncode == 1
    assert "bad key …" in refused.stderr

    written = everything_written(tmp_path)
    assert any(name.endswith("judgements.jsonl") for name in written)
    assert any(name.endswith("server.log") for name in written)
    assert [name for name, content in written.items() if SECRET.encode() in content] == []
    for said in (ran, told, as_json, refused):
        assert SECRET not in said.stdout + said.stderr
