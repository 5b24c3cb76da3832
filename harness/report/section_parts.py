"""What a section of the page is made of: sentences, grids of text, charts to be drawn.

A section is plain text and charts, so that the page needs no knowledge of any strategy. Not
covered: who makes sections, and of what (``section``).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.report.charts import Chart


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of finished text; the first cell of a row is its header.

    ``numeric`` are the columns, counted from 0, whose cells are figures.
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Section:
    """One strategy: what the chapter claims, what theory predicts, what was measured.

    ``lead`` is the finding in one sentence; ``claims`` are names such as ``C1``; ``not_covered``
    says where it ends. ``opens`` makes ``lead`` the page's answer; the general points stand
    below it only with ``keeps_points``. What opens the page, or is a table of all variants
    (``first``), stands before the general scoreboard, the rest behind it.
    """

    anchor: str
    title: str
    lead: str
    claims: tuple[str, ...]
    theory: str
    measured: tuple[str, ...]
    grids: tuple[Grid, ...] = ()
    charts: tuple[Chart, ...] = ()
    not_covered: str = ""
    opens: bool = False
    keeps_points: bool = False
    first: bool = False
