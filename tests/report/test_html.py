from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from harness.analysis.compare import analyse
from harness.report.build import build_report
from harness.report.html import _breakable, _ticked, _unbroken, _united
from tests import records
from tests.report.stored import store_run

SCRIPT = "<script>alert(1)</script>"
IMAGE = '<img src=x onerror="alert(2)">'
#: A colour for a terminal, and a mark that turns the direction of writing.
STEERING = "\x1b[31m \u202e"


class Page(HTMLParser):
    """The elements of a page with their attributes, and its visible text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def values(self, attribute: str) -> list[str]:
        return [value for _, a in self.elements if (value := a.get(attribute)) is not None]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    root = tmp_path_factory.mktemp("plain")
    run = store_run(*records.bench(), root / "results")
    return Page(build_report(run, reports_root=root / "reports").html)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Page:
    root = tmp_path_factory.mktemp("hostile")
    bench, trials = records.bench(1, name=SCRIPT, variants=("fp16", SCRIPT))
    evil = [
        replace(
            trial,
            run=replace(trial.run, reason=IMAGE + STEERING),
            requests=tuple(replace(r, text=IMAGE, finish_reason=SCRIPT) for r in trial.requests),
        )
        for trial in trials
    ]
    bench = replace(
        bench,
        command=("kvbench", "bench", SCRIPT),
        skipped={IMAGE: SCRIPT},
        scenario={**bench.scenario, "question": SCRIPT, "model": IMAGE},
        environment=replace(bench.environment, cpu=IMAGE, git_revision=SCRIPT),
    )
    run = store_run(bench, evil, root / "results")
    return Page(build_report(run, reports_root=root / "reports").html)


def test_the_page_opens_with_the_answer_before_any_table(page: Page) -> None:
    assert page.text.index("fp8 holds 2.00×") < page.source.index("<table")
    assert page.text.index("CPU profile") < page.text.index("fp8 holds")


def test_the_page_loads_nothing_and_runs_its_one_script_alone(page: Page) -> None:
    assert not {"img", "iframe", "object", "embed"} & {tag for tag, _ in page.elements}
    assert page.all("script") == [{}]
    assert not page.values("src")
    assert [a["href"] for a in page.all("link")] == ["data:,"]
    assert not re.search(r"url\((?!#)|@import", page.source)
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    policy = next(a for a in page.all("meta") if a.get("http-equiv"))["content"] or ""
    assert "default-src 'none'" in policy
    script = page.source[page.source.index("<script>") + 8 : page.source.index("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert "unsafe-inline" not in policy.replace("style-src 'unsafe-inline'", "")


def test_text_from_users_and_servers_is_shown_as_text(hostile: Page) -> None:
    assert len(hostile.all("script")) == 1
    assert not hostile.all("img")
    assert not any(
        name.startswith("on") for _, attributes in hostile.elements for name in attributes
    )
    assert hostile.text.count(SCRIPT) >= 5
    assert hostile.text.count(IMAGE) >= 4
    assert SCRIPT not in hostile.source


def test_nothing_in_a_page_steers_a_terminal_or_the_direction_of_writing(hostile: Page) -> None:
    assert "[31m" in hostile.source
    assert not set(STEERING) - set("[31m ") & set(hostile.source)


def test_every_table_has_a_caption_and_every_header_cell_a_scope(page: Page) -> None:
    assert len(page.all("caption")) == len(page.all("table")) > 4
    assert all(header.get("scope") in ("row", "col") for header in page.all("th"))


def test_every_chart_has_a_text_in_its_place(page: Page) -> None:
    charts = [a for a in page.all("div") if a.get("role") == "img"]
    assert len(charts) == len(page.all("svg")) == len(page.all("figure")) >= 5
    assert all(len(chart.get("aria-label") or "") > 20 for chart in charts)


def test_ids_are_unique_and_every_inner_link_leads_somewhere(page: Page) -> None:
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    inner = [a["href"] or "" for a in page.all("a") if (a["href"] or "").startswith("#")]
    assert inner
    assert {link[1:] for link in inner} <= set(ids)


def test_each_reason_below_a_table_is_one_that_a_figure_above_it_points_at(page: Page) -> None:
    before = ""
    for part in re.split(r"(<ol class=\"notes\".*?</ol>)", page.source, flags=re.DOTALL):
        if part.startswith("<ol"):
            table = before[before.rindex("<table") :]
            ids = re.findall(r'<li id="([^"]+)"', part)
            assert ids
            assert all(f'href="#{each}"' in table for each in ids)
        before = part
    assert 'class="notes"' in page.source


def test_the_page_says_that_many_figures_are_compared_and_that_some_miss_by_chance(
    page: Page,
) -> None:
    (count, misses), *_ = re.findall(r"of (\d+), about (\d+), even if nothing differed", page.text)
    # One in twenty at 95 %.
    assert int(misses) == max(1, round(int(count) / 20))
    assert "A single difference among neighbours that show none is to be expected" in page.text


def test_headings_go_down_one_level_at_a_time(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))


def test_the_page_defines_its_terms_and_says_what_is_not_covered(page: Page) -> None:
    for term in ("TTFT", "TPOT", "ITL", "E2EL", "KV in use", "preemption", "send lag", "goodput"):
        assert term in page.text
    assert "what a textbook chapter on the KV cache says" in page.text
    assert "What is not covered" in page.text
    assert "Answer quality" in page.text


def test_the_page_tells_how_to_reproduce_it(page: Page) -> None:
    assert f"git checkout {records.CPU_MACHINE.git_revision}" in page.text
    # `make setup` puts kvbench into .venv/bin and on no PATH.
    assert "make setup\n.venv/bin/kvbench bench fp8_vs_fp16 --profile cpu" in page.text
    assert ".venv/bin/kvbench report " in page.text
    assert "--kv-cache-dtype fp8" in page.text


def test_every_verdict_is_told_with_its_reason(page: Page) -> None:
    assert "3 preemptions: the pool was too small for the load" in page.text


def test_the_page_of_an_ordinary_run_is_small(page: Page) -> None:
    assert len(page.source.encode()) < 5_000_000


def test_what_the_opening_warns_of_is_not_said_again_before_the_figures(page: Page) -> None:
    told = analyse(*records.bench()).cautions
    assert {"cpu_profile", "quality_unmeasured"} <= {caution.code for caution in told}
    for caution in told:
        # What stands between backticks is code on the page.
        assert page.text.count(caution.text.replace("`", "")) == 1, caution.code


def test_backticks_are_code_and_what_is_written_between_them_stays_escaped() -> None:
    """Markup in a user's text is text, also where it is code."""
    assert str(_ticked("set `<b>` or `a")) == "set <code>&lt;b&gt;</code> or `a"


def test_long_names_may_be_broken_behind_their_signs_only() -> None:
    assert str(_breakable("hf_overrides.sliding")) == "hf_<wbr>overrides.<wbr>sliding"
    assert _unbroken("0.15 [0.01, 0.4]") == "0.15 [0.01,\N{NO-BREAK SPACE}0.4]"
    assert _united("at most 9.1 tok/s") == "at most 9.1\N{NO-BREAK SPACE}tok/s"
