"""The page in a real browser: it stands alone, runs no script and is drawn as a page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.analysis.compare import analyse
from harness.report.build import write_report
from tests import records

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="no chromium on this machine"
)


def browse(page: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Open a page in a headless browser that may reach nothing but this file."""
    command = [
        CHROMIUM or "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--enable-logging=stderr",
        f"--user-data-dir={page.parent / 'profile'}",
        *words,
        page.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bench, trials = records.bench(3)
    folder = tmp_path_factory.mktemp("page")
    analysis = analyse(bench, trials)
    return write_report(bench, trials, analysis, run_dir=folder, folder=folder).html


def test_a_browser_finds_the_answer_and_nothing_to_complain_of(page: Path) -> None:
    done = browse(page, "--dump-dom")
    assert "The answer" in done.stdout
    assert "<svg" in done.stdout
    assert not re.findall(r"CONSOLE.*", done.stderr)


def test_the_page_is_drawn_on_a_phone_and_on_a_desk(page: Path) -> None:
    for width in (390, 1200):
        picture = page.parent / f"{width}.png"
        browse(page, f"--window-size={width},900", f"--screenshot={picture}")
        assert picture.read_bytes().startswith(b"\x89PNG")
