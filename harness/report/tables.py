"""From an analysis to cells of text: what stands in the tables of the page and the terminal.

Method: one formatter per unit (all of them from ``units``), one rule per doubt. A figure judged
invalid is withheld and its reason told; unknown is an em dash; below three replicates a ratio is
marked "no interval". Nothing is computed here but the choice of words.

Not covered: markup (``html``, ``terminal``) and the opening sentences (``sentence``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness import units
from harness.analysis.results import Cell, Comparison, Interval, Row, Unit, Verdict

Tone = Literal["good", "bad", "even", "doubt", "plain"]

WITHHELD = "withheld"
#: By how much the quotient of two medians may lie outside an interval before it is told.
_ROUNDING = 0.01
P99_REMARK = "shown from 100 requests up"

#: What the scoreboard shows, in this order; every other row goes below, under "more figures".
SCOREBOARD = (
    "kv.kv_bytes_per_token",
    "kv.kv_cache_tokens",
    "kv.max_concurrency",
    "output_throughput",
    "ttft_s.p50",
    "ttft_s.p90",
    "ttft_s.p99",
    "tpot_s.p50",
    "tpot_s.p90",
    "tpot_s.p99",
    "preemptions",
    "kv_usage_peak",
    "kv_in_use_peak_tokens",
    "kv_in_use_peak_bytes",
    "gpu_used_peak_bytes",
    "rss_peak_bytes",
    "energy_per_output_token_j",
)

#: Where the page calls a metric otherwise than the analysis does.
LABELS = {
    "output_throughput": "Output throughput",
    "request_throughput": "Request throughput",
    "kv_in_use_peak_tokens": "KV in use, peak (tokens)",
    "kv_in_use_peak_bytes": "KV in use, peak (bytes)",
}


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
    """``1.22× [1.19, 1.25]``: enough digits to tell its ends apart; none where they are one."""
    if interval is None:
        return units.format_ratio_range(ratio, None, None)
    return units.format_ratio_range(interval.ratio, interval.low, interval.high)


@dataclass(frozen=True, slots=True)
class CellText:
    """One variant's figure as written: value, ratio, theory, and what to make of it.

    ``aside`` gives the quotient of the two values shown where it tells another story than
    ``ratio``, which is made of every repeat.
    """

    variant: str
    value: str
    ratio: str
    theory: str
    effect: str
    tone: Tone
    judgement: str
    notes: tuple[int, ...] = ()
    aside: str = ""


@dataclass(frozen=True, slots=True)
class RowText:
    """One metric as written; ``better`` is an arrow's word: higher or lower is better."""

    metric: str
    label: str
    better: str
    cells: tuple[CellText, ...]
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A numbered reason for doubt below a table."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class TableText:
    """One workload's table: the scoreboard, the other figures, and the numbered doubts.

    ``left_out`` are the variants of which nothing was measured under this load: no column.
    """

    label: str
    baseline: str
    variants: tuple[str, ...]
    rows: tuple[RowText, ...]
    more: tuple[RowText, ...]
    notes: tuple[Note, ...]
    left_out: tuple[str, ...] = ()

    def notes_of(self, rows: Sequence[RowText]) -> tuple[Note, ...]:
        """The doubts that a figure of ``rows`` points at."""
        marked = {number for row in rows for cell in row.cells for number in cell.notes}
        return tuple(note for note in self.notes if note.number in marked)

    @property
    def board_notes(self) -> tuple[Note, ...]:
        """The doubts to be read below the scoreboard."""
        return self.notes_of(self.rows)

    @property
    def more_notes(self) -> tuple[Note, ...]:
        """The doubts that the other figures alone point at, to be read below those."""
        board = self.board_notes
        return tuple(note for note in self.notes if note not in board)


class _Notes:
    """Numbers each doubt once, however many figures and repeats it touches."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[str, str, str], list[str]] = {}

    def number(self, variant: str, verdict: Verdict) -> int:
        """The number under which this doubt stands below the table."""
        key = (variant, verdict.verdict, verdict.code)
        reasons = self._reasons.setdefault(key, [])
        if verdict.reason not in reasons:
            reasons.append(verdict.reason)
        return list(self._reasons).index(key) + 1

    def all(self) -> tuple[Note, ...]:
        """Every doubt with its first reason, and how many more repeats gave one like it."""
        return tuple(
            Note(number, f"{variant}, {word}: {_first_of(reasons)}")
            for number, ((variant, word, _), reasons) in enumerate(self._reasons.items(), 1)
        )


def _first_of(reasons: list[str]) -> str:
    more = len(reasons) - 1
    return reasons[0] if more < 1 else f"{reasons[0]} ({more} more like it, in the evidence)"


def table(comparison: Comparison) -> TableText:
    """Write one workload's comparison.

    Rows that no variant knows anything of, p90s of too few requests, and variants of which nothing
    was measured are left out.
    """
    notes = _Notes()
    names = _measured(comparison)
    known = [
        replace(row, cells=tuple(cell for cell in row.cells if cell.variant in names))
        for row in comparison.rows
        if _says_something(row, comparison) and not _is_of_too_few(row)
    ]
    board = sorted(
        (row for row in known if row.metric in SCOREBOARD),
        key=lambda row: SCOREBOARD.index(row.metric),
    )
    rows = tuple(_row(row, notes) for row in board)
    more = tuple(_row(row, notes) for row in known if row.metric not in SCOREBOARD)
    return TableText(
        label=comparison.workload_label,
        baseline=comparison.baseline,
        variants=names,
        rows=rows,
        more=more,
        notes=notes.all(),
        left_out=tuple(name for name in comparison.variants if name not in names),
    )


def _measured(comparison: Comparison) -> tuple[str, ...]:
    """The variants that left a figure under this load, and the baseline; all, if none did."""
    found = {c.variant for row in comparison.rows for c in row.cells if c.value is not None}
    kept = {comparison.baseline, *found} if found else set(comparison.variants)
    return tuple(name for name in comparison.variants if name in kept)


def _is_of_too_few(row: Row) -> bool:
    """Whether every figure is a p90 of fewer requests than a p90 needs: no more than a maximum."""
    known = [cell for cell in row.cells if cell.value is not None]
    return row.metric.endswith(".p90") and all(
        any(verdict.code == "too_few_samples" for verdict in cell.verdicts) for cell in known
    )


def _says_something(row: Row, comparison: Comparison) -> bool:
    # A p99 without a value stays beside its p50: the dash says that 100 requests were not reached.
    if row.metric in ("ttft_s.p99", "tpot_s.p99"):
        median = comparison.row(row.metric.replace("p99", "p50"))
        return median is not None and any(cell.value is not None for cell in median.cells)
    return any(cell.value is not None for cell in row.cells)


def _row(row: Row, notes: _Notes) -> RowText:
    better = f"{row.better} is better" if row.better else ""
    base = next((cell for cell in row.cells if cell.is_baseline), None)
    cells = tuple(_cell(row, cell, notes, base) for cell in row.cells)
    few = row.metric.endswith(".p99") and all(cell.value is None for cell in row.cells)
    label = LABELS.get(row.metric, row.label)
    return RowText(row.metric, label, better, cells, P99_REMARK if few else "")


def _cell(row: Row, cell: Cell, notes: _Notes, base: Cell | None) -> CellText:
    withheld = cell.verdict == "invalid" and cell.value is not None
    comparable = "invalid" not in (cell.verdict, base.verdict if base is not None else "valid")
    doubts = tuple(v for v in cell.verdicts if v.verdict != "valid" and cell.value is not None)
    effect, tone = effect_text(cell) if comparable else ("not usable" if withheld else "", "doubt")
    return CellText(
        variant=cell.variant,
        value=WITHHELD if withheld else value_text(cell.value, row.unit),
        ratio="" if cell.is_baseline else _ratio_of(cell, comparable=comparable),
        theory=_theory_text(row, cell),
        effect=effect,
        tone=tone,
        judgement=cell.verdict if cell.value is not None else "valid",
        notes=tuple(dict.fromkeys(notes.number(cell.variant, verdict) for verdict in doubts)),
        aside=_aside(cell, base) if comparable else "",
    )


def _aside(cell: Cell, base: Cell | None) -> str:
    """The quotient of two medians, where it contradicts the ratio of all repeats beside it."""
    found = cell.interval
    if cell.is_baseline or found is None or base is None or not base.value or cell.value is None:
        return ""
    quotient = cell.value / base.value
    low, high = found.low or found.ratio, found.high or found.ratio
    if low * (1 - _ROUNDING) <= quotient <= high * (1 + _ROUNDING):
        return ""
    return f"medians {units.format_ratio_range(quotient, None, None)}"


def _theory_text(row: Row, cell: Cell) -> str:
    """``5,120`` where a value is expected, ``at least 31.0 ms`` where theory only bounds it."""
    text = value_text(cell.theory, row.unit)
    return text if cell.theory is None or row.theory_is == "expected" else f"{row.theory_is} {text}"


def _ratio_of(cell: Cell, *, comparable: bool) -> str:
    return ratio_text(cell.ratio, cell.interval) if comparable else units.DASH


def effect_text(cell: Cell) -> tuple[str, Tone]:
    """What a cell's difference amounts to, in words, and the tone in which to show it."""
    if cell.is_baseline or cell.effect in (None, "unknown"):
        return "", "plain"
    if cell.effect == "no interval":
        return "no interval", "doubt"
    if cell.effect == "no difference shown":
        return "no difference shown", "even"
    if cell.improves is None:
        return str(cell.effect), "plain"
    return ("better", "good") if cell.improves else ("worse", "bad")
