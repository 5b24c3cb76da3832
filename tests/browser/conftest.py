"""One browser, one set of pages and the rules of axe-core, shared by the tests of this folder.

The browser is Debian's Chromium, driven by Playwright, which downloads none; axe-core comes from
npm into a folder beside this file. Where one of them can't be had the tests are skipped, but in CI
they fail: there `.ci/run` has brought them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from tests.browser.pages import build_pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).resolve().parent
AXE = HERE / "node_modules" / "axe-core" / "axe.min.js"
#: Screenshots of the main states; git does not see them.
ARTIFACTS = HERE.parent / "artifacts"


def lacking(what: str) -> NoReturn:
    """End a test that can't be run on this machine: skipped for a person, failed in CI."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@dataclass
class Opened:
    """A page in the browser, and all that it asked for or complained of since it was opened."""

    page: Page
    address: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def unfold(self, trials: int = 1000) -> None:
        """Open everything that is folded; of the trials' evidence that of the first ``trials``."""
        self.page.evaluate(
            """most => document.querySelectorAll("details").forEach(folded => {
                const trial = /^trial-(\\d+)$/.exec(folded.id);
                folded.open = !trial || Number(trial[1]) <= most;
            })""",
            trials,
        )

    def picture(self, name: str, *, whole: bool = False) -> None:
        """Keep a screenshot for whoever wants to look."""
        self.keep(f"{name}.png", self.page.screenshot(full_page=whole))

    def keep(self, name: str, content: bytes) -> None:
        """Keep a file among the tests' artifacts."""
        ARTIFACTS.mkdir(exist_ok=True)
        (ARTIFACTS / name).write_bytes(content)


Open = Callable[..., Opened]


# Of the package, not of the session: while Playwright's loop runs, no other test could run its own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        lacking("no chromium on this machine")
    from playwright.sync_api import expect, sync_playwright

    # A machine that is busy draws late, which says nothing of the page.
    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()


@pytest.fixture(scope="package")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_pages(tmp_path_factory.mktemp("pages"))


@pytest.fixture
def open_page(browser: Browser, pages: dict[str, Path]) -> Iterator[Open]:
    """Opens one of the pages, by its name, in a context of its own."""
    contexts = []

    def opened(name: str, **options: Any) -> Opened:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        found = Opened(page, pages[name].as_uri())
        page.on("request", lambda request: found.requests.append(request.url))
        page.on("console", lambda message: found.complaints.append(message.text))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("dialog", lambda dialog: found.complaints.append(f"dialog: {dialog.message}"))
        page.goto(found.address)
        return found

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="package")
def axe() -> str:
    """The rules of axe-core as a script, installed from npm where they are not yet."""
    if not AXE.is_file():
        npm = shutil.which("npm")
        if npm is None:
            lacking("no npm on this machine, so no axe-core")
        done = subprocess.run(
            [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=HERE,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode:
            lacking(f"npm could not install axe-core: {done.stderr[-500:]}")
    return AXE.read_text(encoding="utf-8")
