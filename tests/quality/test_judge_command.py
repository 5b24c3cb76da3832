"""A whole run, then `kvbench judge`: the perfect judge passes, the biased one is exposed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness import store
from harness.cli.app import build
from harness.errors import InputError, KvbenchError, NotFound
from tests import records
from tests.fake_engine import stand_in_for_engine
from tests.quality.judges import always_a, perfect, scripted
from tests.quality.test_bench import run
from tests.quality.toy import serving
from tests.report.stored import store_run

SECRET = "sk-judge-key"  # noqa: S105
SMALL = ("repeats=1", "quality.num_prompts=20", "quality.needles=null", "quality.answer_tokens=24")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of a slightly noisy variant, for all tests of this file."""
    folder = tmp_path_factory.mktemp("judged")
    with pytest.MonkeyPatch.context() as patch:
        stand_in_for_engine(patch, folder / "cache")
        patch.setenv("FAKE_TOY_FP8", "noise=0.4")
        return run(folder, *SMALL)


def good_answers(folder: Path) -> list[tuple[str, str]]:
    """What the baseline said to each text."""
    records = store.read_quality(folder)
    (reference,) = [p for p in records.passes if p.head.kind == "reference"]
    said = {a.index: (a.text or "").strip() for a in reference.answers}
    return [(p.passage.strip(), said[p.index]) for p in records.prompts]


def judged(stored: Path, tmp_path: Path, url: str, name: str) -> dict[str, Any]:
    words = ["judge", str(stored), "--judge-url", url, "--judge-model", name]
    words += ["--reports", str(tmp_path), "--json"]
    found = CliRunner().invoke(build(words), words, catch_exceptions=False)
    assert found.exit_code == 0
    printed: dict[str, Any] = json.loads(found.stdout)
    return printed


def test_a_perfect_judge_passes_and_gives_the_known_verdict(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVBENCH_JUDGE_API_KEY", SECRET)
    with serving(scripted(perfect(good_answers(stored)))) as judge:
        found = judged(stored, tmp_path, judge.url, "perfect/one")
    assert found["reliable"] is True
    assert found["unreliable_because"] == []
    assert {c["kind"]: (c["right"] == c["asked"] >= 4) for c in found["controls"]} == {
        "identical": True,
        "degraded": True,
        "known": True,
    }
    (fp8,) = found["variants"]
    # It knows the baseline's answers to be good and the variant's others not: every pair that
    # is not word for word the same is lost.
    assert fp8["losses"] == fp8["pairs"] - fp8["identical"] > 0
    assert fp8["wins"] == 0
    assert fp8["non_inferior"] is False
    page = Path(found["report"]).read_text()
    assert "passed its controls" in page
    kept = "".join(p.read_text() for p in stored.rglob("judge*.json*"))
    assert '"perfect/one"' in kept
    assert SECRET not in kept
    assert SECRET not in page


def test_a_judge_that_always_says_a_is_exposed_and_its_verdict_withheld(
    stored: Path, tmp_path: Path
) -> None:
    with serving(scripted(always_a)) as judge:
        found = judged(stored, tmp_path, judge.url, "biased")
    assert found["reliable"] is False
    assert found["position_bias"]["value"] == 1.0
    assert found["variants"][0]["wins"] is None
    page = Path(found["report"]).read_text()
    assert "not reliable" in page
    assert "verdict on the variants is withheld" in page


def test_a_judge_that_was_asked_once_is_not_asked_again(stored: Path, tmp_path: Path) -> None:
    with serving(scripted(always_a)) as judge:
        judged(stored, tmp_path, judge.url, "again")
        first = len(judge.asked)
        judged(stored, tmp_path, judge.url, "again")
        assert len(judge.asked) == first > 0


def test_two_judges_of_one_name_are_kept_apart(stored: Path, tmp_path: Path) -> None:
    with (
        serving(scripted(always_a)) as one,
        serving(scripted(perfect(good_answers(stored)))) as other,
    ):
        biased = judged(stored, tmp_path, one.url, "twin")
        good = judged(stored, tmp_path, other.url, "twin")
        own = judged(stored, tmp_path, other.url, "self")
    assert (biased["judge_id"], biased["reliable"]) == ("twin", False)
    assert good["judge_id"].startswith("twin-")
    assert good["reliable"] is True
    page = Path(good["report"]).read_text()
    assert "The judge twin is not reliable" in page
    assert f"The judge twin ({good['judge_id']}) passed its controls" in page
    # Nobody can pass for the baseline's own server.
    assert own["judge_id"].startswith("self-")
    assert own["is_self"] is False


def test_a_judge_that_is_not_there_is_told_with_the_next_move(stored: Path) -> None:
    words = ["judge", str(stored), "--judge-url", "http://127.0.0.1:9/v1", "--judge-model", "none"]
    with pytest.raises(KvbenchError, match="can't be asked"):
        CliRunner().invoke(build(words), words, catch_exceptions=False)
    heads = {j.head.judge_id: j.head for j in store.read_quality(stored).judges}
    assert heads["none"].status == "failed"


def test_a_run_without_answers_is_told_how_to_get_some(tmp_path: Path) -> None:
    run_folder = store_run(*records.bench(1), tmp_path)
    words = ["judge", str(run_folder), "--judge-url", "http://127.0.0.1:9/v1"]
    words += ["--judge-model", "m"]
    with pytest.raises(NotFound, match="no answers") as caught:
        CliRunner().invoke(build(words), words, catch_exceptions=False)
    assert "quality: on" in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://x", "http://u:p@host/v1", "http://host/v1?key=1", "host"])
def test_a_url_that_could_not_be_stored_is_refused(stored: Path, url: str) -> None:
    words = ["judge", str(stored), "--judge-url", url, "--judge-model", "m"]
    with pytest.raises(InputError):
        CliRunner().invoke(build(words), words, catch_exceptions=False)


def test_the_baselines_own_server_judges_at_its_second_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_engine: None
) -> None:
    monkeypatch.setenv("FAKE_TOY_FP8", "noise=0.4")
    monkeypatch.setenv("FAKE_TOY", "judge=A")
    folder = run(tmp_path, "quality.num_prompts=10", "quality.needles=null", "quality.judge=self")
    (judge,) = store.read_quality(folder).judges
    assert (judge.head.judge_id, judge.head.is_self, judge.head.status) == ("self", True, "sealed")
    assert {j.verdict for j in judge.judgements} == {"A"}
