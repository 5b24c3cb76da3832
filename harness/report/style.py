"""How every chart looks, and how it becomes a PNG, an SVG file and SVG inside a page.

Colours are Okabe and Ito's set for colour-blind readers (Okabe & Ito 2008, "Color universal
design"), always doubled by a hatch, a marker or a dash, so that a chart survives a black-and-white
printer. Inside a page the fixed colours become CSS variables, so that a chart follows light and
dark. Matplotlib is used through figure objects alone; no global state is kept.

Not covered: animation, and scripts other than those of DejaVu Sans (unknown letters become □).
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

INK = "#1f2329"
MUTED = "#5b6470"
RULE = "#d3d8de"
PAPER = "#fefefe"

#: Twice the 100 pixels per inch at which the page shows a chart.
PNG_DPI = 200
WIDTH_IN = 8.0


@dataclass(frozen=True, slots=True)
class Look:
    """How one variant is drawn everywhere: colour for some readers, the rest for all."""

    color: str
    variable: str
    marker: str
    hatch: str
    dash: str


LOOKS = (
    Look("#0072b2", "--c0", "o", "", "-"),
    Look("#d55e00", "--c1", "D", "////", "--"),
    Look("#009e73", "--c2", "s", "....", "-."),
    Look("#cc79a7", "--c3", "^", "\\\\\\\\", ":"),
    Look("#56b4e9", "--c4", "v", "xxxx", (0, (5, 1, 1, 1, 1, 1))),  # type: ignore[arg-type]
    Look("#e69f00", "--c5", "P", "++++", (0, (1, 1))),  # type: ignore[arg-type]
)
_VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--paper"} | {
    look.color: look.variable for look in LOOKS
}
_RC: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
    "axes.grid": False,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "hatch.linewidth": 0.7,
    "svg.fonttype": "path",
    "svg.hashsalt": "kvbench",
    "path.simplify": True,
}

_HEADING = "heading"
#: Where a title begins, as a share of the picture's width, and letters of its lines.
_TITLE_X = 0.01
_TITLE_LETTERS, _FEWEST_LETTERS = 84, 40
#: A number and its unit stay on one line.
_UNIT = re.compile(r"(?<=\d) (?=%|(?:m?s|B|[KMGT]iB|tok/s)\b)")
#: The white sheet below a picture that stands alone; a page has a paper of its own.
_SHEET = '<rect width="100%" height="100%" fill="#ffffff"/>\n '


def look(position: int) -> Look:
    """The look of the variant at this place; the baseline comes first."""
    return LOOKS[position % len(LOOKS)]


@contextmanager
def drawing() -> Iterator[None]:
    """Our settings while a figure is made or written, the caller's afterwards."""
    import matplotlib as mpl

    with mpl.rc_context(_RC):  # type: ignore[arg-type]
        yield


def figure(height_in: float, **grid: Any) -> tuple[Figure, Any]:
    """A new figure of the page's width and its axes (``Figure.subplots`` takes ``grid``)."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    made = Figure(
        figsize=(WIDTH_IN, height_in), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    )
    return made, made.subplots(**grid)


@lru_cache(maxsize=1)
def _letters() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())


def drawable(text: str, longest: int = 32) -> str:
    """Text from a user's file that can be drawn: known letters, one line, not too long."""
    line = " ".join(text.split())
    short = line if len(line) <= longest else line[: longest - 1].rstrip() + "…"
    return "".join(letter if ord(letter) in _letters() else "□" for letter in short)


def tick_text(axis: Any, render: Callable[[float], str], count: int = 5) -> None:
    """Let ``render`` (a formatter of ``units``) write an axis' tick labels."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=count, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: render(value)))


def trimmed(text: str) -> str:
    """A round tick without the digits that say so: ``10.00 s`` → ``10 s``."""
    return re.sub(r"\.0+(?= )", "", text)


def byte_ticks(axis: Any, top: float, count: int = 6) -> None:
    """Tick labels at round binary sizes up to ``top``."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    step = 2.0 ** math.ceil(math.log2(max(top, 1.0) / count))
    axis.set_major_locator(MultipleLocator(step))
    whole = 0 if step >= units.GIB or top < units.GIB else 2
    axis.set_major_formatter(
        FuncFormatter(
            lambda value, _: "0" if value == 0 else trimmed(units.format_bytes(value, whole))
        )
    )


def light_grid(axes: Axes, which: str) -> None:
    """Faint lines across one axis, behind what is drawn."""
    axes.grid(visible=True, axis=which)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


@dataclass(frozen=True, slots=True)
class Picture:
    """One chart, written: its files' names and the SVG that goes into the page."""

    name: str
    title: str
    png: Path
    svg: Path
    inline_svg: str


def _wrapped(title: str, letters: int) -> str:
    return "\n".join(textwrap.wrap(_UNIT.sub("\N{NO-BREAK SPACE}", drawable(title, 300)), letters))


def _keep_inside(made: Figure, heading: Text, title: str) -> None:
    """Break a title sooner where its letters are wide, so that no line leaves the picture."""
    room = made.bbox.width * (1 - 2 * _TITLE_X)
    letters = _TITLE_LETTERS
    while heading.get_window_extent().width > room and letters > _FEWEST_LETTERS:
        letters -= 4
        heading.set_text(_wrapped(title, letters))


def write(made: Figure, name: str, title: str, folder: Path) -> Picture:
    """Write ``<name>.png`` and ``<name>.svg`` with their title, and return the SVG for a page.

    The page's SVG has no title of its own (the page writes it as a heading; its strip is cut
    off), no metadata, no comments, and ids that begin with ``name``, so that several can share
    one document.
    """
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    heading = made.suptitle(
        _wrapped(title, _TITLE_LETTERS),
        x=_TITLE_X,
        ha="left",
        fontsize=11.5,
        fontweight="bold",
        gid=_HEADING,
        # Drawn last, so that nothing after it uses a letter that it defined.
        zorder=1000,
    )
    _keep_inside(made, heading, title)
    made.draw_without_rendering()
    # The layout is found once; each file would otherwise look for it anew.
    made.set_layout_engine("none")
    strip_pt = (made.bbox.height - heading.get_window_extent().y0) / made.dpi * 72
    drawn = _bare(_svg_text(made))
    svg.write_text(drawn.replace("<defs>", _SHEET + "<defs>", 1), encoding="utf-8")
    _write_png(made, png)
    return Picture(name, title, png, svg, _for_page(_cut_top(_headless(drawn), strip_pt), name))


# Canvases write one format each and draw once; ``Figure.savefig`` draws every picture twice.


def _write_png(made: Figure, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    made.set_facecolor("#ffffff")
    made.set_dpi(PNG_DPI)
    canvas: Any = FigureCanvasAgg(made)
    canvas.print_png(path, metadata={"Software": None})


def _svg_text(made: Figure) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    stream = io.StringIO()
    nothing = {"Creator": None, "Date": None, "Format": None, "Type": None}
    made.set_facecolor("none")
    canvas: Any = FigureCanvasSVG(made)
    canvas.print_svg(stream, metadata=nothing)
    return stream.getvalue()


def _headless(svg: str) -> str:
    """Without the group that holds the heading."""
    start = svg.index(f'<g id="{_HEADING}">')
    depth = 0
    for tag in re.compile(r"<g\b|</g>").finditer(svg, start):
        depth += 1 if tag[0] == "<g" else -1
        if depth == 0:
            return svg[:start] + svg[tag.end() :]
    return svg


def _cut_top(svg: str, strip_pt: float) -> str:
    """Leave out the uppermost points of a picture."""

    def lower(match: re.Match[str]) -> str:
        width, height = float(match[1]), float(match[2])
        return f'viewBox="0 {strip_pt:.1f} {width:g} {height - strip_pt:.1f}"'

    return re.sub(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', lower, svg, count=1)


def _bare(svg: str) -> str:
    """Without XML prologue, comments (they repeat the labels) and the empty metadata block."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    return re.sub(r"\n\s*\n+", "\n", body)


def _for_page(svg: str, name: str) -> str:
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-")
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    size = re.compile(r'(<svg\b[^>]*?)\s(?:width|height)="[^"]*"')
    return size.sub(r"\1", size.sub(r"\1", svg, count=1), count=1)
