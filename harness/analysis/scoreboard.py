"""Stored runs → the chapter's "Choosing a strategy" (C15) as one table, each cell stamped.

Method: every ratio is taken inside one run, variant over baseline. *Memory* and *capacity* come
from what the engine granted where the layout of the cache changes (KV dtype, heads, window), else
from the load: KV bytes in use per running request, requests running at the peak. A cell is stamped
``measured`` only if both sides are, ``emulated`` if either is; a variant that was skipped or failed
keeps its reason and has no figure, but for what theory says of a skipped layout's memory and
capacity, which is stamped ``modelled``. Runs of unlike machines are refused, with the difference
named.

Not covered: what a variant is called (``analysis.strategy_names``), figures across runs (none is
formed), and theory of a case of one's own (``kvbench advise``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.analysis.headline import request_length
from harness.analysis.quality import writes_no_text
from harness.analysis.quality_results import Standing
from harness.analysis.results import (
    Analysis,
    Cell,
    Comparison,
    KvComparison,
    TrialAnalysis,
    Validity,
)
from harness.analysis.strategy_names import (
    Effort,
    Family,
    Kind,
    Strategy,
    change_of,
    effort_of,
    setup_of,
    strategy_of,
)
from harness.errors import InputError
from harness.record import ATTACHED, BenchRecord, Environment
from harness.units import format_count, format_ratio, format_ratio_range

CellStamp = Literal["measured", "emulated", "modelled", "skipped", "failed", "not measured"]
#: What is known of a variant's answers; random weights have none to be known of, and what reads
#: the same keys and values can't change them.
AnswerStanding = Standing | Literal["random weights", "unaffected by construction"]

_UNASKED: tuple[AnswerStanding, ...] = ("random weights", "unaffected by construction")
#: Strategies under which every request reads the keys and values that it would read without.
_SAME_TEXT: tuple[Family, ...] = ("prefix sharing", "paging", "CPU offloading")
_NOT_FULL = "not tested: this load fills neither pool"

METRICS = ("memory", "capacity", "throughput", "ttft", "quality")


@dataclass(frozen=True, slots=True)
class ScoreCell:
    """One figure of one strategy, as a ratio, or the reason why there is none.

    ``memory`` is baseline / variant (2 is half the memory), ``quality`` the ratio of perplexities
    of the same texts, the others variant / baseline. ``shown`` is whether a difference was shown
    (None: not asked).
    ``note`` is for readers; ``standing`` is what follows from ``quality`` and None elsewhere.
    """

    stamp: CellStamp
    value: float | None = None
    low: float | None = None
    high: float | None = None
    shown: bool | None = None
    judgement: Validity = "valid"
    note: str | None = None
    standing: AnswerStanding | None = None

    @classmethod
    def of_answers(
        cls, standing: AnswerStanding, ratio: float | None = None, *, shown: bool | None = None
    ) -> ScoreCell:
        """The cell of answers that have a standing, which is told as its note."""
        stamp: CellStamp = "not measured" if standing in _UNASKED else "measured"
        note = "fails the sanity gate" if standing == "broken" else standing
        return cls(stamp, ratio, shown=shown, note=note, standing=standing)


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One strategy: a variant of one run against that run's baseline, under one load.

    ``strategy`` is what a reader sees, ``family`` what rows are told apart by, ``kind`` how their
    memory is read.
    """

    strategy: str
    family: Family
    kind: Kind
    variant: str
    baseline: str
    scenario: str
    run_id: str
    engine: str
    model: str
    workload_label: str | None
    effort: Effort
    change: str
    cells: Mapping[str, ScoreCell]

    @property
    def standing(self) -> AnswerStanding | None:
        """What is known of the strategy's answers; None where nothing is."""
        return self.cells["quality"].standing


@dataclass(frozen=True, slots=True)
class Scoreboard:
    """All strategies of some runs on one kind of machine; ``cautions`` are for every reader."""

    profile: str
    device: str
    rows: tuple[ScoreRow, ...]
    recommendation: tuple[str, ...]
    run_ids: tuple[str, ...]
    cautions: tuple[str, ...]


def scoreboard(runs: Sequence[tuple[BenchRecord, Analysis]]) -> Scoreboard:
    """Join runs into one table.

    Raises:
        InputError: no run, or runs of unlike machines.
    """
    if not runs:
        raise InputError("a scoreboard needs at least one run")
    first = runs[0][0].environment
    for bench, _ in runs[1:]:
        _refuse_unlike(runs[0][0], bench)
    rows = tuple(row for bench, analysis in runs for row in _rows(bench, analysis))
    return Scoreboard(
        profile=first.profile,
        device=device_name(first),
        rows=rows,
        recommendation=recommendation(rows),
        run_ids=tuple(bench.run_id for bench, _ in runs),
        cautions=_cautions(rows, runs),
    )


def device_name(environment: Environment) -> str:
    """The GPU, or the processor where there is none; nobody knows an attached server's."""
    if environment.profile == ATTACHED:
        return "an attached server's machine"
    if environment.gpus:
        return environment.gpus[0].name
    return environment.cpu or "an unknown processor"


def _refuse_unlike(one: BenchRecord, other: BenchRecord) -> None:
    a, b = one.environment, other.environment
    for name, left, right in (
        ("profile", a.profile, b.profile),
        ("device", device_name(a), device_name(b)),
        ("number of cores", a.cpu_cores, b.cpu_cores),
    ):
        if left != right:
            raise InputError(
                f"runs of unlike machines don't share a scoreboard: the {name} is {left} in "
                f"{one.run_id} and {right} in {other.run_id}",
                where="--scoreboard",
                next_move="give runs that were taken on the same machine and profile",
            )


def _cautions(
    rows: Sequence[ScoreRow], runs: Sequence[tuple[BenchRecord, Analysis]]
) -> tuple[str, ...]:
    found = []
    models = sorted({row.model for row in rows})
    if len(models) > 1:
        found.append(f"the runs serve different models ({', '.join(models)})")
    told = {kv.engine_version for _, analysis in runs for kv in analysis.kv}
    versions = sorted(version for version in told if version is not None)
    if len(versions) > 1:
        found.append(f"the runs were taken with different engines ({', '.join(versions)})")
    found += [f"run {b.run_id} is not finished" for b, _ in runs if b.status != "finished"]
    if len({row.run_id for row in rows}) > 1:
        found.append(
            "each row has its own load and baseline: rows can be read, not divided by one another"
        )
    return tuple(found)


# ── what follows ────────────────────────────────────────────────────────────────────────────

_EFFORTS: tuple[Effort, ...] = ("flags", "model change", "plugin")


def recommendation(rows: Sequence[ScoreRow]) -> tuple[str, ...]:
    """What the table supports, in the order of effort: only shown gains, and what they cost."""
    served = [row for row in rows if row.engine == "vllm"]
    gains = [row for row in served if _gains(row) and not _broken(row)]
    gains.sort(key=lambda row: (_EFFORTS.index(row.effort), -(row.cells["capacity"].value or 0.0)))
    told = [f"{row.strategy} ({row.effort}): {_gain_text(row)}" for row in gains]
    told += [f"not {row.strategy}: its text fails the gate" for row in served if _broken(row)]
    return tuple(dict.fromkeys(told)) or ("no strategy of these runs shows a gain",)


def _gains(row: ScoreRow) -> bool:
    """A gain that was shown: by the engine's grant, or by an interval that leaves out 1."""
    capacity, throughput = row.cells["capacity"], row.cells["throughput"]
    return any(
        cell.stamp in ("measured", "emulated") and cell.shown and (cell.value or 0.0) > 1.0
        for cell in (capacity, throughput)
    )


def _broken(row: ScoreRow) -> bool:
    return row.standing == "broken"


def _gain_text(row: ScoreRow) -> str:
    parts = []
    for metric, word in (("capacity", "capacity"), ("throughput", "throughput")):
        cell = row.cells[metric]
        if cell.value is not None and cell.shown:
            emulated = " (emulated)" if cell.stamp == "emulated" else ""
            ratio = format_ratio_range(cell.value, cell.low, cell.high)
            parts.append(f"{ratio} the {word}{emulated}")
        elif cell.value is not None and cell.shown is False:
            ratio = format_ratio_range(cell.value, cell.low, cell.high)
            parts.append(f"no difference in {word} shown ({ratio})")
        elif cell.note == _NOT_FULL:
            parts.append(f"{word} not tested (pool not full)")
        elif cell.value is not None:
            parts.append(f"{word} {format_ratio(cell.value)}, observed without an interval")
    told: Mapping[AnswerStanding, str] = {
        "indistinguishable": "answers indistinguishable from the baseline's own spread",
        "differs": "answers differ: judge them before using it",
        "unaffected by construction": "answers unaffected by construction",
        "random weights": "no quality with random weights: it takes a model trained so",
    }
    if row.family == "prefix sharing" and row.workload_label is not None:
        parts.append(f"under {row.workload_label}")
    unknown = "quality unmeasured here: measure it before using it"
    parts.append(told.get(row.standing, unknown) if row.standing is not None else unknown)
    return ", ".join(parts)


# ── one row ─────────────────────────────────────────────────────────────────────────────────


def _rows(bench: BenchRecord, analysis: Analysis) -> list[ScoreRow]:
    variants = bench.scenario.get("variants") or {}
    # Policies of kvpress buy nothing on a server: their own section weighs them.
    served = [name for name, given in variants.items() if not (given or {}).get("kvpress")]
    return [_row(bench, analysis, str(name)) for name in served if name != analysis.baseline]


def _row(bench: BenchRecord, analysis: Analysis, name: str) -> ScoreRow:
    mine, theirs = (setup_of(bench.scenario, side) for side in (name, analysis.baseline))
    engine = str(bench.scenario.get("engine") or "vllm")
    strategy = strategy_of(mine, theirs, engine)
    load = _load(analysis, name, shared=strategy.family == "prefix sharing")
    return ScoreRow(
        strategy=strategy.name,
        family=strategy.family,
        kind=strategy.kind,
        variant=name,
        baseline=analysis.baseline,
        scenario=bench.scenario_name,
        run_id=bench.run_id,
        engine=engine,
        model=str(bench.scenario.get("model") or "?"),
        workload_label=load.workload_label if load is not None else None,
        effort=effort_of(mine, theirs),
        change=change_of(mine, theirs),
        cells=_cells(analysis, name, strategy, load, textless=writes_no_text(mine.flags)),
    )


# ── its figures ─────────────────────────────────────────────────────────────────────────────


def _load(analysis: Analysis, variant: str, *, shared: bool) -> Comparison | None:
    """The load by which the row is judged: one that the pool limits, else the first.

    Loads whose prompts share a prefix are for the strategy that stores it once, if there are both.
    """
    every = [c for c in analysis.comparisons if variant in c.variants]
    own = [c for c in every if bool(c.workload.get("shared_prefix_tokens")) == shared] or every
    limited = analysis.headline.pool_limited_workloads
    return next((c for c in own if c.workload_label in limited), own[0] if own else None)


def _cells(
    analysis: Analysis, variant: str, strategy: Strategy, load: Comparison | None, *, textless: bool
) -> dict[str, ScoreCell]:
    kind = strategy.kind
    missing = _missing(analysis, variant)
    if missing is not None or load is None:
        cell = missing or ScoreCell("not measured", note="no load was run")
        empty = dict.fromkeys(METRICS, cell)
        modelled = kind == "layout" and cell.stamp == "skipped"
        return empty | (_modelled(analysis, variant, cell) if modelled else {})
    stamp = _stamp(analysis, variant)
    granted = _granted(analysis, variant, stamp)
    full = load.workload_label in analysis.headline.pool_limited_workloads
    running = _running(load, variant, stamp, full=full or kind == "paging")
    per_request = _inverse(_per_request(load, variant, stamp))
    memory, capacity = {
        "layout": (granted, granted),
        "paging": (running, running),
        "serving": (per_request, running),
    }.get(kind, (_nothing(_NO_MEMORY[kind]), _nothing(_NO_MEMORY[kind])))
    planned = _capacity(analysis, variant, stamp)
    if kind == "layout" or (kind == "serving" and planned.shown):
        # Eviction changes what the engine plans per request; sharing a prefix does not.
        memory, capacity = granted, planned
    return {
        "memory": memory,
        "capacity": capacity,
        "throughput": _of_row(load, "output_throughput", variant, stamp),
        "ttft": _of_row(load, "ttft_s.p50", variant, stamp),
        "quality": _quality(analysis, variant, strategy.family, textless=textless),
    }


_NO_MEMORY: Mapping[str, str] = {
    "layout": "",
    "paging": "",
    "serving": "",
    "offload": "the pool stays as large; blocks are kept beside it, in host memory",
    "reference": "the reference engine has no pool",
    "other": "these settings do not change what is stored",
}


def _nothing(reason: str) -> ScoreCell:
    return ScoreCell("not measured", note=reason)


def _missing(analysis: Analysis, variant: str) -> ScoreCell | None:
    """Why the variant, or its baseline, has no figures; None where both have."""
    if variant in analysis.skipped:
        return ScoreCell("skipped", note=analysis.skipped[variant])
    for side in (variant, analysis.baseline):
        trials = [trial for trial in analysis.trials if trial.variant == side]
        if not any(trial.status == "sealed" for trial in trials):
            return _lost(side, trials)
    return None


def _lost(side: str, trials: Sequence[TrialAnalysis]) -> ScoreCell:
    reason = next((trial.reason for trial in trials if trial.reason), "it was not run")
    skipped = trials and all(trial.status == "skipped" for trial in trials)
    failed = any(trial.status in ("failed", "started") for trial in trials)
    stamp: CellStamp = "skipped" if skipped else "failed" if failed else "not measured"
    return ScoreCell(stamp, note=f"{side}: {reason}")


def _modelled(analysis: Analysis, variant: str, skipped: ScoreCell) -> dict[str, ScoreCell]:
    """Memory and capacity of a skipped layout by theory, in the bytes that it was to be given."""
    pools = _pools(analysis, variant)
    mine, base = (pool.predicted for pool in pools) if pools is not None else (None, None)
    if mine is None or base is None:
        return {}
    note = f"skipped here: {skipped.note}"
    ratios = {
        "memory": (base.kv_bytes_per_token, mine.kv_bytes_per_token),
        "capacity": (mine.kv_cache_tokens, base.kv_cache_tokens),
    }
    return {
        metric: ScoreCell("modelled", over / under, note=note)
        for metric, (over, under) in ratios.items()
        if over and under
    }


def _stamp(analysis: Analysis, variant: str) -> CellStamp:
    """Measured only if both sides are."""
    stamps = {t.stamp for t in analysis.trials if t.variant in (variant, analysis.baseline)}
    if "modelled" in stamps:
        return "modelled"
    return "emulated" if "emulated" in stamps else "measured"


def _of_row(load: Comparison, metric: str, variant: str, stamp: CellStamp) -> ScoreCell:
    cell = load.cell(metric, variant)
    if cell is None or cell.ratio is None:
        return _nothing("no ratio of both sides under this load")
    if cell.verdict == "invalid":
        reason = next((v.reason for v in cell.verdicts if v.verdict == "invalid"), "judged invalid")
        return ScoreCell("not measured", judgement="invalid", note=f"withheld: {reason}")
    return ScoreCell(
        stamp,
        cell.ratio,
        cell.interval.low if cell.interval is not None else None,
        cell.interval.high if cell.interval is not None else None,
        _shown(cell),
        cell.verdict,
        next((v.reason for v in cell.verdicts if v.verdict != "valid"), None),
    )


def _shown(cell: Cell) -> bool | None:
    if cell.effect in ("higher", "lower"):
        return True
    return False if cell.effect == "no difference shown" else None


def _pools(analysis: Analysis, variant: str) -> tuple[KvComparison, KvComparison] | None:
    mine = next((kv for kv in analysis.kv if kv.variant == variant), None)
    base = next((kv for kv in analysis.kv if kv.is_baseline), None)
    return (mine, base) if mine is not None and base is not None else None


def _capacity(analysis: Analysis, variant: str, stamp: CellStamp) -> ScoreCell:
    pools = _pools(analysis, variant)
    ratio = pools[0].capacity_ratio if pools is not None else None
    if ratio is None:
        return _nothing("the engine did not report both pools")
    note = _counted(pools, "tokens granted", "requests of {} tokens that fit")
    return ScoreCell(stamp, ratio, shown=abs(ratio - 1.0) > 1e-9, note=note)


def _counted(pools: Sequence[KvComparison] | None, by_tokens: str, by_requests: str) -> str:
    """What a ratio of pools counts: where layers free blocks, tokens are none that are stored."""
    length = request_length(pools or ())
    return by_tokens if length is None else by_requests.format(format_count(length))


def _granted(analysis: Analysis, variant: str, stamp: CellStamp) -> ScoreCell:
    """Pool bytes per token, or per request, that the engine says it holds: baseline / variant."""
    pools = _pools(analysis, variant)
    rates = [_pool_rate(pool, analysis) for pool in pools or ()]
    if len(rates) < 2 or rates[0] is None or rates[1] is None:
        return _nothing("the engine did not report both pools")
    ratio = rates[1] / rates[0]
    pools = _pools(analysis, variant)
    note = _counted(pools, "bytes per token granted", "bytes per request of {} tokens")
    return ScoreCell(stamp, ratio, shown=abs(ratio - 1.0) > 1e-9, note=note)


def _pool_rate(pool: KvComparison, analysis: Analysis) -> float | None:
    size = pool.granted.kv_cache_memory_bytes or analysis.kv_budget_bytes
    tokens = pool.granted.kv_cache_tokens
    return size / tokens if size and tokens else None


def _per_request(load: Comparison, variant: str, stamp: CellStamp) -> ScoreCell:
    """KV bytes in use per running request at the peak: variant over baseline."""
    held = _of_row(load, "kv_in_use_peak_bytes", variant, stamp)
    running = _of_row(load, "requests_running_peak", variant, stamp)
    if held.value is None or running.value is None:
        return _nothing("the engine's gauges do not tell both sides")
    return ScoreCell(stamp, held.value / running.value, note="KV in use per running request")


def _running(load: Comparison, variant: str, stamp: CellStamp, *, full: bool) -> ScoreCell:
    """Requests running at the peak, where requests had to wait for room on one side at least.

    Requests also wait for their turn in a step: a queue before a pool that is not ``full`` says
    nothing of capacity.
    """
    if not full:
        return _nothing(_NOT_FULL)
    row = load.row("requests_waiting_peak")
    waiting = [cell.value for cell in row.cells if cell.value is not None] if row else []
    if not any(waiting):
        return _nothing("every request fitted on both sides: this load does not show capacity")
    return _of_row(load, "requests_running_peak", variant, stamp)


def _inverse(cell: ScoreCell) -> ScoreCell:
    if cell.value is None:
        return cell
    return ScoreCell(cell.stamp, 1.0 / cell.value, note=cell.note)


def _quality(analysis: Analysis, variant: str, family: Family, *, textless: bool) -> ScoreCell:
    if textless:
        return ScoreCell.of_answers("random weights")
    found = analysis.quality.of(variant) if analysis.quality is not None else None
    if found is None:
        if family in _SAME_TEXT:
            return ScoreCell.of_answers("unaffected by construction")
        return _nothing("answers were not asked for in this run")
    # The texts are the same for every side; the answers are the baseline's, likeliest to itself.
    told = found.on_context or found.on_tail or found.on_answers
    if told is None:
        reason = found.reason or "no answer could be held against the baseline's"
        return replace(_nothing(reason), standing=found.standing)
    shown = {"broken": True, "differs": True, "indistinguishable": False}.get(found.standing)
    cell = ScoreCell.of_answers(found.standing, told.perplexity_ratio, shown=shown)
    if told is found.on_context:
        return cell
    of_what = "the texts' last quarter" if told is found.on_tail else "the baseline's answers"
    return replace(cell, note=f"{cell.note}; perplexity of {of_what}")
