"""A chart as files: drawn, written, and kept with the words that stand beside it.

Not covered: which charts there are (``gallery``, sections) and how a page lays them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.report import style
from harness.report.charts import Chart


@dataclass(frozen=True, slots=True)
class Plate:
    """A chart that was drawn and written."""

    picture: style.Picture
    caption: str
    alt: str


def plate(chart: Chart, folder: Path) -> Plate:
    """Draw a chart and write its files into ``folder``.

    Raises:
        OSError: the files can't be written.
    """
    with style.drawing():
        picture = style.write(chart.draw(), chart.name, chart.title, folder)
    return Plate(picture, chart.caption, chart.alt)
