"""The pages in a real browser: they stand alone, adapt to screen and paper, sort and filter."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Open, Opened, lacking
from tests.browser.pages import IMAGE, NAMES, SCRIPT, WIDE

FIELD = "Show rows that contain"


def first_table(opened: Opened) -> Locator:
    """The requests of the first trial, unfolded."""
    opened.page.locator("details[id^=trial-]").first.evaluate("d => { d.open = true }")
    return opened.page.locator("details[id^=trial-]").first


def figures(table: Locator, column: int) -> list[float | None]:
    """A column's values as the rows stand; None where one is unknown."""
    script = f"rows => rows.filter(r => !r.hidden).map(r => r.cells[{column}].dataset.v ?? null)"
    values = table.locator("table.sortable tbody tr").evaluate_all(script)
    return [None if value is None else float(value) for value in values]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_asks_for_nothing_and_complains_of_nothing(open_page: Open, name: str) -> None:
    opened = open_page(name)
    opened.unfold()
    opened.page.mouse.wheel(0, 100_000)
    for button in opened.page.locator("table.sortable thead button").all()[:3]:
        button.click()
    expect(opened.page.locator("h1")).to_be_visible()
    assert opened.requests == [opened.address]
    assert opened.complaints == []
    opened.picture(f"{name}-wide")


def test_a_header_sorts_up_then_down_from_the_keyboard(open_page: Open) -> None:
    opened = open_page("report")
    table = first_table(opened)
    head = table.locator("thead th", has_text="TTFT")
    button = head.get_by_role("button", name="TTFT", exact=True)
    before = figures(table, 2)
    assert before != sorted(before)
    button.focus()
    opened.page.keyboard.press("Enter")
    assert figures(table, 2) == sorted(before)
    expect(head).to_have_attribute("aria-sort", "ascending")
    opened.page.keyboard.press("Space")
    assert figures(table, 2) == sorted(before, reverse=True)
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(table.get_by_role("status")).to_contain_text("sorted by TTFT, highest first")
    assert opened.page.evaluate("document.activeElement.textContent") == "TTFT"
    table.locator("thead button", has_text="E2EL").click()
    assert table.locator("[aria-sort]").count() == 1
    table.scroll_into_view_if_needed()
    opened.picture("requests-sorted")


def test_what_is_unknown_is_sorted_last_either_way(open_page: Open) -> None:
    opened = open_page("hostile")
    table = first_table(opened)
    cell = table.locator("tbody tr").nth(5).locator("td").nth(1)
    cell.evaluate("cell => { delete cell.dataset.v; cell.textContent = '—' }")
    button = table.get_by_role("button", name="TTFT", exact=True)
    for _ in range(2):
        button.click()
        values = figures(table, 2)
        assert values[-1] is None
        assert None not in values[:-1]


def test_the_filter_shows_the_rows_with_all_its_words_and_says_how_many(open_page: Open) -> None:
    opened = open_page("report")
    table = first_table(opened)
    rows, told = table.locator("table.sortable tbody tr"), table.get_by_role("status")
    total = rows.count()
    warm = rows.filter(has_text="warm-up").count()
    assert 0 < warm < total
    field = table.get_by_label(FIELD)
    field.fill("LENGTH warm-up")
    expect(told).to_have_text(f"{warm} of {total} rows shown")
    assert rows.locator("visible=true").count() == warm
    opened.picture("requests-filtered")
    field.fill("nothing has this")
    expect(told).to_have_text(f"0 of {total} rows shown")
    field.fill("")
    expect(told).to_have_text(f"{total} of {total} rows shown")


def test_without_script_the_tables_are_plain_and_whole(open_page: Open) -> None:
    opened = open_page("report", java_script_enabled=False)
    folded = opened.page.locator("details[id^=trial-]").first
    folded.locator("summary").click()
    assert folded.locator("tbody tr").locator("visible=true").count() > 10
    assert opened.page.locator("button, input").count() == 0
    expect(folded.locator("thead th", has_text="TTFT")).to_have_text("TTFT")


def test_a_link_to_evidence_unfolds_it(open_page: Open) -> None:
    opened = open_page("report")
    opened.page.get_by_role("link", name=re.compile("evidence of")).nth(1).click()
    expect(opened.page.locator("#trial-2 table.sortable")).to_be_visible()


def test_a_script_that_is_not_ours_does_not_run(open_page: Open) -> None:
    opened = open_page("report")
    ran = opened.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
            return window.ran === true;
        }"""
    )
    assert not ran
    assert "Content Security Policy" in opened.complaints[0]


def test_hostile_texts_are_shown_as_text(open_page: Open) -> None:
    opened = open_page("hostile")
    opened.unfold()
    text = opened.page.inner_text("body")
    assert text.count(SCRIPT) >= 5
    assert text.count(IMAGE) >= 4
    assert opened.page.locator("script").count() == 1
    assert opened.page.locator("img").count() == 0
    assert opened.complaints == []


@pytest.mark.parametrize("name", [*NAMES, WIDE])
def test_on_a_phone_nothing_is_wider_than_the_screen(open_page: Open, name: str) -> None:
    opened = open_page(name, viewport={"width": 390, "height": 844}, has_touch=True)
    opened.unfold()
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 390
    assert opened.page.evaluate(WIDER, 390) == []
    opened.picture(f"{name}-phone")


def test_on_a_desktop_the_scoreboard_is_read_without_scrolling_sideways(open_page: Open) -> None:
    opened = open_page("scoreboard", viewport={"width": 1100, "height": 900})
    # A strategy that the engine refused keeps the engine's long reason.
    reasons = opened.page.locator("td .reason, td.reason").all_text_contents()
    assert max(map(len, reasons)) > 100
    hidden = opened.page.locator(".scroll").evaluate_all(
        "regions => regions.map(r => r.scrollWidth - r.clientWidth)"
    )
    assert hidden
    assert max(hidden) <= 0


#: Elements that stick out of a page so wide and that nothing around them lets a reader scroll.
WIDER = """width => [...document.body.querySelectorAll("*")].filter(element => {
    if (element.closest("svg") && element.tagName !== "svg") return false;
    const box = element.getBoundingClientRect();
    if (!box.width || box.right <= width + 1) return false;
    for (let around = element.parentElement; around; around = around.parentElement)
        if (getComputedStyle(around).overflowX === "auto") return false;
    return true;
}).map(element => element.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("name", NAMES)
def test_in_the_dark_the_page_is_dark_and_so_are_its_charts(open_page: Open, name: str) -> None:
    opened = open_page(name, color_scheme="dark")
    ground = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(20, 24, 29)"
    # No mark of a chart keeps a colour of the light page: black on black could not be seen.
    inks = opened.page.evaluate(
        """() => [...new Set([...document.querySelectorAll("svg [style]")]
            .map(mark => mark.getAttribute("style"))
            .flatMap(style => style.match(/(fill|stroke): *(#[0-9a-f]{6}|black)/g) ?? []))]"""
    )
    assert not [ink for ink in inks if ink.endswith(("#000000", "black", "#1f2329"))]
    opened.picture(f"{name}-dark")


#: The width of A4 less two margins of 12 mm, at 96 pixels per inch: 186 / 25.4 · 96.
PAPER = 703


@pytest.mark.parametrize("name", [*NAMES, WIDE])
def test_on_paper_nothing_is_cut_and_nothing_is_there_to_be_clicked(
    open_page: Open, name: str
) -> None:
    opened = open_page(name, viewport={"width": PAPER, "height": 1000}, color_scheme="dark")
    opened.unfold()
    opened.page.emulate_media(media="print")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= PAPER
    assert opened.page.evaluate(WIDER, PAPER) == []
    assert opened.page.locator("nav, .filter").locator("visible=true").count() == 0
    ground = opened.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert ground in ("rgba(0, 0, 0, 0)", "rgb(255, 255, 255)")
    ink = opened.page.evaluate("getComputedStyle(document.body).color")
    assert ink == "rgb(0, 0, 0)"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_becomes_a_pdf_of_some_sheets(open_page: Open, name: str) -> None:
    opened = open_page(name)
    paper = opened.page.pdf(format="A4")
    assert paper.startswith(b"%PDF")
    sheets = len(re.findall(rb"/Type\s*/Page\b", paper))
    assert 1 <= sheets <= 40
    opened.keep(f"{name}.pdf", paper)


def test_what_is_lacking_is_skipped_by_a_person_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no chromium"):
        lacking("no chromium on this machine")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no chromium"):
        lacking("no chromium on this machine")
