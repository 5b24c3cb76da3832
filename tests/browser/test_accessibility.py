"""axe-core on every page: light on a desk, dark on a phone, where tables become cards.

All is unfolded but the evidence of trials after the first, which is made by the same template.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import Open
from tests.browser.pages import NAMES

#: A chart is one picture with a text in its place; what it is drawn of is not the reader's, and
#: walking through it would take most of the time.
RUN = """() => {
    for (const svg of document.querySelectorAll("svg")) svg.replaceChildren();
    return axe.run(document, { resultTypes: ["violations"] });
}"""


def told(findings: list[dict[str, Any]]) -> list[str]:
    """Each finding with the elements that it is about."""
    return [
        f"{found['id']} ({found['impact']}): {found['help']}: {node['html'][:160]} "
        f"{node['failureSummary'][:200]}"
        for found in findings
        for node in found["nodes"][:3]
    ]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 390)])
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_no_violation(
    open_page: Open, axe: str, name: str, scheme: str, width: int
) -> None:
    opened = open_page(name, color_scheme=scheme, viewport={"width": width, "height": 900})
    opened.unfold(trials=1)
    opened.page.evaluate(axe)
    result = opened.page.evaluate(RUN)
    assert told(result["violations"]) == []
    assert len(result["passes"]) > 20


def test_axe_would_find_one(open_page: Open, axe: str) -> None:
    opened = open_page("compare")
    opened.page.evaluate("document.querySelector('h1').style.color = '#bbbbbb'")
    opened.page.evaluate(axe)
    found = opened.page.evaluate(RUN)["violations"]
    assert [violation["id"] for violation in found] == ["color-contrast"]
