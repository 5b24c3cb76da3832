"""From an analysis to cells of text: what stands in the tables of the page and the terminal.

Method: one formatter per unit (all of them from ``units``), one rule per doubt. A figure judged
invalid is withheld and its reason told; unknown is an em dash; below three replicates a ratio is
marked "no interval". Nothing is computed here but the choice of words.

Not covered: markup (``html``, ``terminal``) and the opening sentences (``sentence``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from harness import units
from harness.analysis.results import Cell, Comparison, Interval, Row, Unit, Verdict

Tone = Literal["good", "bad", "even", "doubt", "plain"]

WITHHELD = "withheld"

#: What the scoreboard shows, in this order; every other row goes below, under "more figures".
SCOREBOARD = (
    "kv_bytes_per_token",
    "kv_cache_tokens",
    "max_concurrency",
    "concurrency_at_workload",
    "output_throughput",
    "ttft_s.p50",
    "ttft_s.p90",
    "ttft_s.p99",
    "tpot_s.p50",
    "tpot_s.p90",
    "tpot_s.p99",
    "preemptions",
    "kv_usage_peak",
    "gpu_used_peak_bytes",
    "rss_peak_bytes",
    "energy_per_output_token_j",
)


def _whole_or(digits: int) -> Callable[[float], str]:
    return lambda value: units.format_count(value, 0 if value == round(value) else digits)


_FORMATS: Mapping[Unit, Callable[[float], str]] = {
    "bytes": units.format_bytes,
    "bytes_per_token": lambda value: f"{_whole_or(1)(value)} B",
    "tokens": _whole_or(1),
    "seconds": units.format_duration,
    "per_s": lambda value: units.format_rate(value, "req/s", 2),
    "tokens_per_s": lambda value: units.format_rate(value, "tok/s"),
    "count": _whole_or(1),
    "fraction": units.format_percent,
    "joules": lambda value: f"{units.format_count(value, 1)} J",
    "joules_per_token": lambda value: f"{units.format_count(value, 3)} J",
    "concurrency": lambda value: units.format_count(value, 2),
}


def value_text(value: float | None, unit: Unit) -> str:
    """A figure in its unit; None → an em dash."""
    return units.DASH if value is None else _FORMATS[unit](value)


def ratio_text(ratio: float | None, interval: Interval | None) -> str:
    """``1.22× [1.19, 1.25]``; more digits where the interval is narrower than two per cent."""
    if interval is None or interval.low is None or interval.high is None:
        return units.format_ratio(ratio if interval is None else interval.ratio)
    width = interval.relative_width
    digits = 3 if width is not None and width < 0.02 else 2
    low, high = (units.format_count(end, digits) for end in (interval.low, interval.high))
    return f"{units.format_ratio(interval.ratio, digits)} [{low}, {high}]"


@dataclass(frozen=True, slots=True)
class CellText:
    """One variant's figure as written: value, ratio, theory, and what to make of it."""

    variant: str
    value: str
    ratio: str
    theory: str
    effect: str
    tone: Tone
    judgement: str
    notes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RowText:
    """One metric as written; ``better`` is an arrow's word: higher or lower is better."""

    metric: str
    label: str
    better: str
    cells: tuple[CellText, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A numbered reason for doubt below a table."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class TableText:
    """One workload's table: the scoreboard, the other figures, and the numbered doubts."""

    label: str
    baseline: str
    variants: tuple[str, ...]
    rows: tuple[RowText, ...]
    more: tuple[RowText, ...]
    notes: tuple[Note, ...]
    has_theory: bool


class _Notes:
    """Numbers each reason once, however many figures it touches."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers) + 1)

    def all(self) -> tuple[Note, ...]:
        return tuple(Note(number, text) for text, number in self._numbers.items())


def table(comparison: Comparison) -> TableText:
    """Write one workload's comparison; rows that no variant knows anything of are left out."""
    notes = _Notes()
    known = [row for row in comparison.rows if _says_something(row)]
    board = sorted(
        (row for row in known if row.metric in SCOREBOARD),
        key=lambda row: SCOREBOARD.index(row.metric),
    )
    rows = tuple(_row(row, notes) for row in board)
    more = tuple(_row(row, notes) for row in known if row.metric not in SCOREBOARD)
    return TableText(
        label=comparison.workload_label,
        baseline=comparison.baseline,
        variants=comparison.variants,
        rows=rows,
        more=more,
        notes=notes.all(),
        has_theory=any(cell.theory is not None for row in board for cell in row.cells),
    )


def _says_something(row: Row) -> bool:
    # The p99 rows stay even when empty: their dash says that 100 requests were not reached.
    return row.metric in {"ttft_s.p99", "tpot_s.p99"} or any(
        cell.value is not None or cell.theory is not None for cell in row.cells
    )


def _row(row: Row, notes: _Notes) -> RowText:
    better = f"{row.better} is better" if row.better else ""
    return RowText(row.metric, row.label, better, tuple(_cell(row, c, notes) for c in row.cells))


def _cell(row: Row, cell: Cell, notes: _Notes) -> CellText:
    withheld = cell.verdict == "invalid"
    doubts = tuple(v for v in cell.verdicts if v.verdict != "valid")
    effect, tone = effect_text(cell)
    return CellText(
        variant=cell.variant,
        value=WITHHELD if withheld else value_text(cell.value, row.unit),
        ratio="" if cell.is_baseline else _ratio_of(cell),
        theory=value_text(cell.theory, row.unit),
        effect=effect,
        tone=tone,
        judgement=cell.verdict,
        notes=tuple(dict.fromkeys(notes.number(_doubt(cell, verdict)) for verdict in doubts)),
    )


def _doubt(cell: Cell, verdict: Verdict) -> str:
    return f"{cell.variant}, {verdict.verdict}: {verdict.reason}"


def _ratio_of(cell: Cell) -> str:
    return units.DASH if cell.verdict == "invalid" else ratio_text(cell.ratio, cell.interval)


def effect_text(cell: Cell) -> tuple[str, Tone]:
    """What a cell's difference amounts to, in words, and the tone in which to show it."""
    if cell.verdict == "invalid":
        return "not usable", "doubt"
    if cell.is_baseline or cell.effect in (None, "unknown"):
        return "", "plain"
    if cell.effect == "no interval":
        return "no interval", "doubt"
    if cell.effect == "no difference shown":
        return "no difference shown", "even"
    if cell.improves is None:
        return str(cell.effect), "plain"
    return ("better", "good") if cell.improves else ("worse", "bad")


def worst(verdicts: Iterable[Verdict]) -> str:
    """The gravest judgement among verdicts; valid if there are none."""
    order = ("valid", "suspect", "invalid")
    return max((v.verdict for v in verdicts), key=order.index, default="valid")
