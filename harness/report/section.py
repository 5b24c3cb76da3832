"""The sections that a run gets beside its tables, one per strategy, and their pictures.

Method: each maker looks at the run and returns a section or None; what a run holds decides, not
its name. Where the scenario cites claims of the chapter, only sections that test one of them are
shown, and those that test none. Not covered: what stands in a section (``quality``,
``reference``, ``strategy_memory``, ``strategy_serving``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.results import Analysis
from harness.record import BenchRecord, TrialRecord
from harness.report import (
    quality,
    reference,
    strategy_choice,
    strategy_eviction,
    strategy_memory,
    strategy_serving,
)
from harness.report.plate import Plate, plate
from harness.report.section_parts import Section

Maker = Callable[[BenchRecord, Sequence[TrialRecord], Analysis], Section | None]

MAKERS: tuple[Maker, ...] = (
    reference.section,
    strategy_choice.section,
    quality.section,
    strategy_memory.growth_section,
    strategy_memory.dtype_section,
    strategy_memory.heads_section,
    strategy_memory.window_section,
    strategy_eviction.section,
    strategy_serving.waste_section,
    strategy_serving.prefix_section,
    strategy_serving.offload_section,
    strategy_serving.cliff_section,
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A section with its charts drawn and written."""

    section: Section
    plates: tuple[Plate, ...]


def drawn_sections(
    bench: BenchRecord, trials: Sequence[TrialRecord], analysis: Analysis, folder: Path
) -> tuple[Drawn, ...]:
    """The run's sections; their charts are written into ``folder``."""
    return tuple(
        Drawn(section, tuple(plate(chart, folder) for chart in section.charts))
        for section in sections(bench, trials, analysis)
    )


def sections(
    bench: BenchRecord, trials: Sequence[TrialRecord], analysis: Analysis
) -> tuple[Section, ...]:
    """The sections of a run, without pictures."""
    cited = {str(number) for number in bench.scenario.get("claims") or ()}
    made = (maker(bench, trials, analysis) for maker in MAKERS)
    return tuple(
        section
        for section in made
        if section is not None and (not cited or not section.claims or cited & set(section.claims))
    )
