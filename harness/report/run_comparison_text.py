"""A comparison of runs in words: what the page, the terminal and the markdown all say.

Method: everything that is told of several runs becomes finished text here once, so that the three
outputs can't disagree: the opening, the runs, what differs, the gate's checks, one table per
variant and load (``tables``, with runs in the place of variants), and how each run's trials ended.
Effects are named only where an interval shows them. Not covered: escaping and layout, which each
output does for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness import units
from harness.analysis.gate import Check, GateResult
from harness.analysis.results import Cell, Row
from harness.analysis.rows import EXACT
from harness.analysis.run_comparison import RunComparison, StoredRun, VariantComparison
from harness.analysis.run_differences import Difference
from harness.analysis.scoreboard import device_name
from harness.analysis.stats import MIN_REPLICATES
from harness.record import HOW_ENDED
from harness.report import tables
from harness.report.tables import TableText, Tone

#: What the opening speaks of, in the order of weight.
HEADLINE = (
    "kv.kv_bytes_per_token",
    "kv.kv_cache_tokens",
    "output_throughput",
    "ttft_s.p50",
    "tpot_s.p50",
)
MAX_POINTS = 12
#: A commit is told apart by fewer letters than it has.
_SHORT_COMMIT = 12
_LONGEST = 240
_TONES: dict[str, Tone] = {
    "pass": "good",
    "fail": "bad",
    "inconclusive": "doubt",
    "not applicable": "even",
}


@dataclass(frozen=True, slots=True)
class RunText:
    """One run as it is introduced."""

    label: str
    run_id: str
    scenario: str
    profile: str
    device: str
    model: str
    engine: str
    commit: str
    started: str
    trials: str


@dataclass(frozen=True, slots=True)
class DifferenceText:
    """One key that differs, a text per run; ``refused`` is what makes runs unlike."""

    key: str
    values: tuple[str, ...]
    refused: bool


@dataclass(frozen=True, slots=True)
class CheckText:
    """One check of the gate as written."""

    rule: str
    run: str
    variant: str
    load: str
    change: str
    replicates: str
    verdict: str
    tone: Tone
    reason: str
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PairText:
    """One variant under one load: its table, how the trials ended, how the ratios were made."""

    variant: str
    load: str
    table: TableText | None
    ends: tuple[str, ...]
    method: str


@dataclass(frozen=True, slots=True)
class RunComparisonText:
    """All of it, in the order of reading; ``gate`` is its verdict, None where none was asked."""

    lead: str
    points: tuple[str, ...]
    limits: tuple[str, ...]
    runs: tuple[RunText, ...]
    differences: tuple[DifferenceText, ...]
    gate: str | None
    gate_answer: str | None
    gate_tone: Tone
    checks: tuple[CheckText, ...]
    pairs: tuple[PairText, ...]


def run_comparison_text(
    run_comparison: RunComparison, gate: GateResult | None = None
) -> RunComparisonText:
    """Write the comparison, and the gate's answer if one was asked."""
    compared = [load for load in run_comparison.loads if load.comparison is not None]
    return RunComparisonText(
        lead=" ".join(_lead(run, compared) for run in run_comparison.runs[1:]),
        points=_points(compared),
        limits=tuple(caution.text for caution in run_comparison.cautions),
        runs=tuple(_run(run) for run in run_comparison.runs),
        differences=tuple(_difference(one) for one in run_comparison.differences),
        gate=None if gate is None else gate.verdict,
        gate_answer=None if gate is None else f"The gate answers {gate.why}.",
        gate_tone=_TONES[gate.verdict] if gate is not None else "plain",
        checks=() if gate is None else tuple(map(_check, _gravest_first(gate))),
        pairs=tuple(
            _pair(load) for load in run_comparison.loads if any(s.planned for s in load.sides)
        ),
    )


# ── the opening ─────────────────────────────────────────────────────────────────────────────


def _lead(run: StoredRun, compared: Sequence[VariantComparison]) -> str:
    """How throughput stands, counted over all pairs: the figure that a regression is sought in."""
    found = (load.comparison for load in compared)
    cells = [c for x in found if x and (c := x.cell("output_throughput", run.label)) is not None]
    if not cells:
        return f"Run {run.label} has no trial in common with run A."
    counts: dict[str, int] = {}
    for cell in cells:
        word = _shown(cell)
        counts[word] = counts.get(word, 0) + 1
    told = ", ".join(f"{word} in {count}" for word, count in counts.items())
    pairs = units.counted(len(cells), "pair")
    return (
        f"Run {run.label} against run A: output throughput is compared in {pairs} of variant and "
        f"load: {told}."
    )


def _shown(cell: Cell) -> str:
    if cell.value is None:
        return "not measured"
    if cell.verdict == "invalid":
        return "withheld as invalid"
    return "unknown" if cell.effect in (None, "unknown") else str(cell.effect)


def _points(compared: Sequence[VariantComparison]) -> tuple[str, ...]:
    # What the engine grants is the same under every load: told once per variant.
    found = tuple(dict.fromkeys(_effects(compared)))
    rest = len(found) - MAX_POINTS
    more = (f"and {units.counted(rest, 'more difference')}, in the tables",) if rest > 0 else ()
    if not found and not any(_values(compared)):
        return ("Nothing was measured in both runs, so nothing can be said to differ or not.",)
    few = _too_few(compared)
    if found:
        return (*found[:MAX_POINTS], *more, *([few] if few else []))
    what = "bytes per token, capacity, throughput, TTFT or TPOT"
    return (few or f"No difference is shown in {what}.",)


def _too_few(compared: Sequence[VariantComparison]) -> str | None:
    """That speeds can't be told apart, where no pair has the repeats that an interval takes."""
    counts: dict[str, int] = {}
    for load in compared:
        row = load.comparison.row("output_throughput") if load.comparison is not None else None
        for cell in row.cells if row is not None else ():
            if cell.effect not in (None, "unknown", "no interval"):
                return None
            if cell.value is not None:
                counts[cell.variant] = max(counts.get(cell.variant, 0), len(cell.replicates))
    short = [f"run {run} has {n}" for run, n in counts.items() if n < MIN_REPLICATES]
    if not short:
        return None
    return (
        f"Nothing can be told of throughput, TTFT and TPOT: {units.listed(short)} of the "
        f"{MIN_REPLICATES} repeats that it takes."
    )


def _values(compared: Sequence[VariantComparison]) -> Iterator[bool]:
    """For each figure beside the baseline's, whether there is one on both sides."""
    for metric in HEADLINE:
        for load in compared:
            row = load.comparison.row(metric) if load.comparison is not None else None
            cells = row.cells if row is not None else ()
            yield sum(cell.value is not None for cell in cells) > 1


def _effects(compared: Sequence[VariantComparison]) -> Iterator[str]:
    for metric in HEADLINE:
        for load in compared:
            row = load.comparison.row(metric) if load.comparison is not None else None
            for cell in row.cells if row is not None else ():
                if row is not None and cell.effect in ("higher", "lower"):
                    yield _effect(row, cell, load)


def _effect(row: Row, cell: Cell, load: VariantComparison) -> str:
    where = load.variant if row.metric in EXACT else f"{load.variant} · {load.workload_label}"
    label = tables.LABELS.get(row.metric, row.label)
    ratio = tables.ratio_text(cell.ratio, cell.interval)
    return f"{cell.variant}, {where}: {label} {ratio}, {tables.effect_text(cell)[0]}"


# ── runs and what differs ───────────────────────────────────────────────────────────────────


def _run(run: StoredRun) -> RunText:
    environment, ended = run.bench.environment, run.analysis.headline
    servers = [record.run.server for record in run.records if record.run.server is not None]
    engines = dict.fromkeys(f"{s.engine} {s.engine_version or units.DASH}" for s in servers)
    counts = {
        "sealed": ended.trials_sealed,
        "failed": ended.trials_failed,
        "skipped": ended.trials_skipped,
        "started": ended.trials_unfinished,
    }
    commit = (environment.git_revision or units.DASH)[:_SHORT_COMMIT]
    return RunText(
        label=run.label,
        run_id=run.bench.run_id,
        scenario=run.bench.scenario_name,
        profile=environment.profile,
        device=device_name(environment),
        model=str(run.bench.scenario.get("model") or units.DASH),
        engine=", ".join(engines) or units.DASH,
        commit=f"{commit} (dirty)" if environment.git_dirty else commit,
        started=environment.started_at or units.DASH,
        trials=", ".join(f"{n} {HOW_ENDED[how]}" for how, n in counts.items() if n) or "none",
    )


def _difference(one: Difference) -> DifferenceText:
    lists = [value for value in one.values if isinstance(value, list)]
    shared = set(map(str, lists[0])).intersection(*(map(str, x) for x in lists)) if lists else set()
    # What all lists hold is no difference; where one holds nothing else, that is said.
    drop = shared if len(lists) == len(one.values) else set()
    values = tuple(_value(one.key, value, drop) for value in one.values)
    return DifferenceText(one.key, values, one.refused)


def _value(key: str, value: Any, shared: set[str]) -> str:
    if isinstance(value, list):
        own = [_value(key, item, set()) for item in value if str(item) not in shared]
        text = ", ".join(own) or ("nothing else" if shared else units.DASH)
    elif value is None or value in ("", {}):
        text = units.DASH
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif key.endswith("_bytes") and isinstance(value, int):
        text = units.format_bytes(value)
    else:
        text = str(value)[:_SHORT_COMMIT] if key == "git_revision" else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


# ── the gate ────────────────────────────────────────────────────────────────────────────────


def _gravest_first(gate: GateResult) -> list[Check]:
    order = ("fail", "inconclusive", "pass", "not applicable")
    return sorted(gate.checks, key=lambda check: order.index(check.verdict))


def _check(check: Check) -> CheckText:
    return CheckText(
        rule=check.rule.text,
        run=check.run,
        variant=check.variant,
        load=check.workload_label,
        change=change_text(check),
        replicates="exact" if check.exact else " / ".join(map(str, check.replicates)),
        verdict=check.verdict,
        tone=_TONES[check.verdict],
        reason=" ".join(check.reason.split()),
        doubts=tuple(" ".join(doubt.split()) for doubt in check.doubts),
    )


def change_text(check: Check) -> str:
    """``-10.2 % [-12.1 %, -8.3 %]``; one figure where there is no spread."""
    change = check.change
    if change.value is None:
        return "up from zero" if change.low is not None else units.DASH
    value = units.format_change(change.value)
    if change.low is None or change.high is None or change.high - change.low < 1e-9:
        return value
    return f"{value} [{units.format_change(change.low)}, {units.format_change(change.high)}]"


# ── one variant under one load ──────────────────────────────────────────────────────────────


def _pair(load: VariantComparison) -> PairText:
    made = tables.table(load.comparison) if load.comparison is not None else None
    return PairText(
        variant=load.variant,
        load=load.workload_label,
        table=made if made is not None and (made.rows or made.more) else None,
        ends=tuple(_ends(load)),
        method=_method(load),
    )


def _ends(load: VariantComparison) -> Iterator[str]:
    for side in load.sides:
        if not side.planned:
            yield f"{side.run}: not part of this run"
            continue
        told = ", ".join(f"{count} {HOW_ENDED[how]}" for how, count in side.counts.items())
        why = "; ".join(" ".join(reason.split()) for reason in side.reasons)[:_LONGEST]
        yield f"{side.run}: {told or 'never begun'}" + (f" ({why})" if why else "")


def _method(load: VariantComparison) -> str:
    if load.comparison is None:
        return "not compared: the baseline run or every other one left no trial of it"
    kinds = {load.estimates[label] for label in load.comparison.variants if label in load.estimates}
    return f"ratios {' and '.join(sorted(kinds))}"
