from __future__ import annotations

import re
import struct
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from harness.report import charts, style


def picture(folder: Path, name: str = "one", variant: str = "fp16") -> style.Picture:
    bars = (charts.Bar(variant, 0, 1.0, text="1.0 tok/s"), charts.Bar("b", 1, 2.0))
    with style.drawing():
        made = charts.throughput([charts.BarGroup("load", bars)])
        return style.write(made, name, "What was found", folder)


def test_a_png_has_twice_the_pixels_at_which_the_page_shows_it(tmp_path: Path) -> None:
    png = picture(tmp_path).png.read_bytes()
    width, _ = struct.unpack(">II", png[16:24])
    # 8 inches, shown at 100 pixels per inch.
    assert width == 2 * 8 * 100


def test_an_svg_names_no_address_and_keeps_no_comment_of_its_labels(tmp_path: Path) -> None:
    made = picture(tmp_path, variant="<script>alert(1)</script>")
    for text in (made.svg.read_text(), made.inline_svg):
        assert "<!--" not in text
        assert "script" not in text
        assert "metadata" not in text
        addresses = set(re.findall(r"https?://[^\"'<> ]+", text))
        # Names of XML vocabularies: nothing loads them.
        assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
        ET.fromstring(text)  # noqa: S314 - our own text


def test_two_charts_in_one_page_share_no_id(tmp_path: Path) -> None:
    pages = [picture(tmp_path, name).inline_svg for name in ("one", "two")]
    first, second = (set(re.findall(r'\bid="([^"]+)"', page)) for page in pages)
    assert first
    assert not first & second
    for page, own in zip(pages, (first, second), strict=True):
        used = re.findall(r'href="#([^"]+)"', page) + re.findall(r"url\(#([^)]+)\)", page)
        assert set(used) <= own


def test_colours_in_the_page_follow_its_light_and_dark_variables(tmp_path: Path) -> None:
    made = picture(tmp_path)
    assert "var(--c0)" in made.inline_svg
    assert "var(--ink)" in made.inline_svg
    assert not re.search(r"#[0-9a-f]{6}\b", made.inline_svg)
    assert "var(" not in made.svg.read_text()


def test_a_picture_is_the_same_each_time_it_is_drawn(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = (picture(tmp_path / name) for name in ("a", "b"))
    assert first.png.read_bytes() == second.png.read_bytes()
    assert first.inline_svg == second.inline_svg


@pytest.mark.parametrize("name", ["漢字 🙂", "$x_1$ \\frac{", "two\nlines\tand\0nul", "x" * 500])
def test_names_from_files_are_drawn_without_a_warning(tmp_path: Path, name: str) -> None:
    # Warnings are errors here: an unknown glyph or a broken formula would raise.
    assert picture(tmp_path, variant=name).png.is_file()


def test_a_name_that_is_drawn_is_one_short_line_of_known_letters() -> None:
    assert style.drawable("a\n b 🙂") == "a b □"
    assert style.drawable("x" * 50, 10) == "x" * 9 + "…"


def test_drawing_leaves_the_callers_settings_alone() -> None:
    import matplotlib as mpl

    before = mpl.rcParams["font.size"]
    with style.drawing():
        assert mpl.rcParams["font.size"] == 9.5
    assert mpl.rcParams["font.size"] == before


def test_memory_is_marked_at_round_binary_sizes() -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    axes.set_xlim(0, 3 << 30)
    style.byte_ticks(axes.xaxis, 3 << 30)
    labels = [axes.xaxis.get_major_formatter()(tick) for tick in (0, 1 << 29, 3 << 29, 1 << 30)]
    assert labels == ["0", "512 MiB", "1.50 GiB", "1 GiB"]


def test_no_line_of_a_title_leaves_the_picture_however_wide_its_letters(tmp_path: Path) -> None:
    with style.drawing():
        made, _ = style.figure(2.0)
        style.write(made, "wide", "MOST WORK WITH WWW MMM " * 8, tmp_path)
    (heading,) = (each for each in made.texts if each.get_gid() == "heading")
    assert heading.get_window_extent().x1 <= made.bbox.width
