"""The page of every scenario that ships, built from a real run's stored records.

The records lie trimmed in ``tests/data/runs`` (``tests/data/trim_run.py`` made them).
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness import store
from harness.report import style
from harness.report.build import ReportPaths, build_report
from tests.report.stored import unpacked

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted(path.stem for path in (ROOT / "scenarios").glob("*.yaml"))


def built(run: Path) -> ReportPaths:
    return build_report(run, reports_root=run.parents[2] / "reports")


def change(path: Path, **values: Any) -> None:
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, **values}))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_scenario_gets_a_page_with_its_question_its_variants_and_its_pictures(
    scenario: str, tmp_path: Path
) -> None:
    run = unpacked(scenario, tmp_path)
    made = built(run)
    page = made.html.read_text(encoding="utf-8")
    bench = store.read_manifest(run)
    assert bench.scenario["question"] in page.replace("&#39;", "'")
    for variant in bench.scenario["variants"]:
        assert variant in page
    assert len(page.encode()) < 5_000_000
    assert page.count("<figure") == len(made.pngs) > 0
    assert all(path.is_file() for path in (*made.pngs, *made.svgs))
    # What a template or a sentence would leave where something is unknown.
    words = re.sub(r"<(svg|style|pre)\b.*?</\1>", "", page, flags=re.DOTALL)
    assert not re.search(r"\b(None|nan|inf)\b|\{\{|\{%", words)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_with_a_failed_a_skipped_and_a_half_written_trial_each_page_still_shows_them_as_such(
    scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pictures' files are looked at above; small ones do here.
    monkeypatch.setattr(style, "PNG_DPI", 30)
    run = unpacked(scenario, tmp_path)
    ids = store.read_manifest(run).trial_ids
    begun = [run / trial for trial in ids if (run / trial / store.RUN_FILE).is_file()]
    first, last, more = begun[0], begun[-1], run / "one-more"
    shutil.copytree(first, more)
    change(run / store.BENCH_FILE, trial_ids=[*ids, more.name])
    change(first / store.RUN_FILE, status="failed", reason="the server died", load_end_s=None)
    facts = {**json.loads((more / store.RUN_FILE).read_text())["trial"], "trial_id": more.name}
    nothing = {"trial": facts, "server": None, "load_start_s": None, "load_end_s": None}
    change(more / store.RUN_FILE, status="skipped", reason="no kernel for it", **nothing)
    (more / store.REQUESTS_FILE).unlink()
    change(last / store.RUN_FILE, status="started", reason=None, load_end_s=None)
    requests = last / store.REQUESTS_FILE
    requests.write_bytes(requests.read_bytes()[:-20])
    page = built(run).html.read_text(encoding="utf-8")
    for words in ("the server died", "no kernel for it", "not finished"):
        assert words in page


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_stored_test_data_tells_nothing_of_the_machine_it_was_made_on(
    scenario: str, tmp_path: Path
) -> None:
    run = unpacked(scenario, tmp_path)
    text = "".join(path.read_text() for path in run.rglob("*") if path.is_file())
    assert set(re.findall(r"(?<![\w:/.])~?/(?:\w[\w.@+~-]*/)+", text)) <= {"/srv/"}
    assert not re.search(r"/root|/home|\.cache|hostname", text, re.IGNORECASE)
