"""A regression gate: rules such as ``output_throughput<-5%`` over a comparison of runs.

Method: a rule names a metric and a change of it (later run over first, less 1) that is too much.
It is put to every variant under every load of every later run, and answered from the interval of
the ratio, never from the ratio alone: **fail** when the whole interval lies beyond the limit,
**pass** when none of it does, **inconclusive** otherwise. What the engine grants (bytes per token,
capacity) has no spread and decides by value, one launch being enough. No interval (fewer than 3
repeats on a side), an unknown or invalid figure, trials that were lost or skipped on one side: all
inconclusive, for a gate that passes what it could not see is worse than none, and one that fails
it tells of a regression that nobody measured. Lost trials leave a fail standing and take a pass
away. What was skipped in both runs, or is not in the baseline run, is not applicable. The whole
gate fails if one check does, else is inconclusive if one is, and passes only if there is at least
one check that passes.

A count of zero has no ratio: from zero to zero is no change, to more than zero throughout is
beyond every rise. Not covered: many rules at once widen no interval (at 95 % about one interval in
forty misses on the side that a rule looks at); answer quality.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.analysis.results import Cell, TrialAnalysis, Verdict
from harness.analysis.rows import METRICS, Metric
from harness.analysis.run_comparison import RunComparison, Side, VariantComparison
from harness.analysis.stats import MIN_REPLICATES
from harness.errors import InputError, did_you_mean
from harness.record import HOW_ENDED
from harness.units import Fraction, counted, format_change

GateVerdict = Literal["pass", "fail", "inconclusive"]
CheckVerdict = Literal["pass", "fail", "inconclusive", "not applicable"]

EXIT_CODES: Mapping[GateVerdict, int] = {"pass": 0, "fail": 1, "inconclusive": 3}

_RULE = re.compile(r"\s*([A-Za-z_][\w.]*)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*%\s*", re.ASCII)
_FORM = "METRIC<-5% or METRIC>+5%"
#: Values this near to a limit are at it: the logarithm of a ratio and back costs as much.
_AT_LIMIT = 1e-9

_BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}
#: The figures of ``vllm bench serve`` as its result files spell them.
_VLLM_FIGURES = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}
_VLLM_NAMES: Mapping[str, str] = {
    f"{theirs}_{name}_ms": f"{name}_s.{ours}"
    for name in ("ttft", "tpot", "itl", "e2el")
    for theirs, ours in _VLLM_FIGURES.items()
} | {"request_goodput": "goodput"}
#: Every spelling that a rule may use → the metric's name.
NAMES: Mapping[str, str] = {
    **{name: name for name in _BY_NAME},
    **{name.removeprefix("kv."): name for name in _BY_NAME},
    **_VLLM_NAMES,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A change that is too much: of ``metric``, below (or above) ``limit`` (−0.05 is −5 %)."""

    text: str
    metric: str
    below: bool
    limit: Fraction


@dataclass(frozen=True, slots=True)
class Change:
    """How a figure changed, 0 being not at all; None is unknown, or (``high``) without bound."""

    value: Fraction | None
    low: Fraction | None
    high: Fraction | None


@dataclass(frozen=True, slots=True)
class Check:
    """One rule put to one variant under one load of one run.

    ``replicates`` are those of the baseline run and of this one. ``doubts`` are the reasons for
    which either figure is suspect; they change no verdict.
    """

    rule: Rule
    run: str
    variant: str
    workload_label: str
    verdict: CheckVerdict
    reason: str
    exact: bool
    change: Change
    replicates: tuple[int, int]
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GateResult:
    """The answer and every check behind it."""

    verdict: GateVerdict
    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        """0 for pass, 1 for fail, 3 for inconclusive."""
        return EXIT_CODES[self.verdict]

    @property
    def why(self) -> str:
        """The answer in a sentence."""
        counts = dict.fromkeys(("fail", "inconclusive", "pass", "not applicable"), 0)
        for check in self.checks:
            counts[check.verdict] += 1
        told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        return f"{self.verdict}: of {counted(len(self.checks), 'check')} {told or 'none'}"


def parse_rule(text: str) -> Rule:
    """Read ``output_throughput<-5%``: the change that trips the gate.

    Raises:
        InputError: another form, an unknown metric, or a limit that no change can be beyond.
    """
    # A minus as word processors and our own pages write it.
    match = _RULE.fullmatch(text.replace("−", "-"))
    if match is None:
        raise InputError(
            f"{text[:80]!r} is no rule",
            where="--fail-on",
            legal=[_FORM],
            next_move="quote it, since a shell takes < and > for files: "
            "--fail-on 'output_throughput<-5%'",
        )
    name, sign, number = match.groups()
    if name not in NAMES:
        raise InputError(
            f"there is no metric {name[:80]!r}",
            where=f"--fail-on {text[:80]!r}",
            legal=sorted(NAMES),
            next_move=did_you_mean(name, NAMES),
        )
    limit = float(number) / 100.0
    if limit <= -1.0 or not math.isfinite(limit):
        raise InputError(
            f"a change of {number[:40]} % is no limit: nothing falls by more than all",
            where=f"--fail-on {text[:80]!r}",
            legal=["limits above -100%"],
        )
    return Rule(text.strip(), NAMES[name], sign == "<", limit)


def decide(
    run_comparison: RunComparison,
    rules: Sequence[Rule],
    *,
    variants: Sequence[str] = (),
    loads: Sequence[str] = (),
) -> GateResult:
    """Put every rule to every pair; ``variants`` and ``loads`` narrow it, none given is all.

    A load is given by its name or its whole label.

    Raises:
        InputError: a variant or load that no run has.
    """
    kept = _narrowed(run_comparison.loads, variants, loads)
    checks = tuple(
        _check(rule, load, run_comparison, place)
        for rule in rules
        for load in kept
        for place in range(1, len(run_comparison.runs))
    )
    return GateResult(_overall(checks), checks)


def _overall(checks: Sequence[Check]) -> GateVerdict:
    found = {check.verdict for check in checks}
    if "fail" in found:
        return "fail"
    return "pass" if "pass" in found and "inconclusive" not in found else "inconclusive"


def _narrowed(
    loads: Sequence[VariantComparison], variants: Sequence[str], wanted: Sequence[str]
) -> list[VariantComparison]:
    by_variant = list(dict.fromkeys(load.variant for load in loads))
    by_load = list(dict.fromkeys(name for load in loads for name in _names(load)))
    for option, given, known in (
        ("--gate-variant", variants, by_variant),
        ("--gate-load", wanted, by_load),
    ):
        for name in given:
            if name not in known:
                raise InputError(
                    f"no run has {name[:80]!r}",
                    where=option,
                    legal=known,
                    next_move=did_you_mean(name, known),
                )
    kept = [load for load in loads if not variants or load.variant in variants]
    return [load for load in kept if not wanted or set(_names(load)) & set(wanted)]


def _names(load: VariantComparison) -> tuple[str, ...]:
    name = load.workload.get("name")
    return (str(name), load.workload_label) if name else (load.workload_label,)


# ── one check ───────────────────────────────────────────────────────────────────────────────

_UNKNOWN = Change(None, None, None)


def _check(rule: Rule, load: VariantComparison, run_comparison: RunComparison, place: int) -> Check:
    base, run = run_comparison.runs[0], run_comparison.runs[place]
    metric = _BY_NAME[rule.metric]
    found = load.comparison
    labels = (base.label, run.label)
    cells = [found.cell(rule.metric, label) for label in labels] if found is not None else []
    known = [cell for cell in cells if cell is not None]
    verdict, reason, change = _answer(
        rule, metric, load, known, place, forced="workloads" in run_comparison.forced
    )
    counts = [len(cell.replicates) if cell is not None else 0 for cell in cells] or [0, 0]
    return Check(
        rule=rule,
        run=run.label,
        variant=load.variant,
        workload_label=load.workload_label,
        verdict=verdict,
        reason=reason,
        exact=metric.exact,
        change=change,
        replicates=(counts[0], counts[1]),
        doubts=_reasons(known, "suspect"),
    )


def _answer(
    rule: Rule,
    metric: Metric,
    load: VariantComparison,
    cells: Sequence[Cell],
    place: int,
    *,
    forced: bool,
) -> tuple[CheckVerdict, str, Change]:
    base, mine = load.sides[0], load.sides[place]
    if (moot := _moot(base, mine, forced=forced)) is not None:
        return "not applicable", moot, _UNKNOWN
    if len(cells) < 2 or any(cell.value is None for cell in cells):
        return "inconclusive", _why_unknown(load, cells, place), _UNKNOWN
    if wrong := _reasons(cells, "invalid"):
        return "inconclusive", f"a figure is invalid: {wrong[0]}", _UNKNOWN
    if metric.exact:
        found = _exact_change(metric, load.trials[0], load.trials[place])
        return _decided(
            rule, found, "what the launches were granted lies on both sides of the limit"
        )
    found, missing = _sampled_change(cells[0], cells[1])
    if missing is not None:
        return "inconclusive", missing, found
    verdict, reason, found = _decided(rule, found, "the interval lies on both sides of the limit")
    lost = [side for side in (base, mine) if side.lost]
    if verdict == "pass" and lost:
        told = " and ".join(f"{side.lost} in {side.run}" for side in lost)
        return "inconclusive", f"what was measured would pass, but trials were lost: {told}", found
    return verdict, reason, found


def _moot(base: Side, mine: Side, *, forced: bool) -> str | None:
    """Why there is nothing to answer: what is new, or can run in neither, has not regressed.

    What the baseline has and the other run leaves out is no such thing, unless the loads were
    known to be unlike and compared all the same.
    """
    if base.skipped and mine.skipped:
        return f"skipped in both runs: {_first(base.reasons)}"
    for side in (base, mine) if forced else (base,):
        if not side.planned:
            return f"run {side.run} does not have it"
    return None


def _decided(rule: Rule, change: Change, between: str) -> tuple[CheckVerdict, str, Change]:
    """The heart of it: where does the whole interval lie?"""
    low = -math.inf if change.low is None else change.low
    high = math.inf if change.high is None else change.high
    limit = format_change(rule.limit)
    side = "below" if rule.below else "above"
    if rule.below:
        beyond, within = high < rule.limit - _AT_LIMIT, low >= rule.limit - _AT_LIMIT
    else:
        beyond, within = low > rule.limit + _AT_LIMIT, high <= rule.limit + _AT_LIMIT
    if beyond:
        return "fail", f"wholly {side} {limit}", change
    if within:
        return "pass", f"nothing of it is {side} {limit}", change
    return "inconclusive", f"{between}, {limit}", change


def _sampled_change(base: Cell, mine: Cell) -> tuple[Change, str | None]:
    """The change with its interval, or the reason why there is none."""
    interval = mine.interval
    if interval is None:
        return _change_of_zeros(base, mine)
    value = interval.ratio - 1.0
    if interval.low is None or interval.high is None:
        return Change(value, None, None), interval.reason or "no interval"
    return Change(value, interval.low - 1.0, interval.high - 1.0), None


def _change_of_zeros(base: Cell, mine: Cell) -> tuple[Change, str | None]:
    """Where a value is zero, only what holds of every repeat can be said."""
    before, after = ([value for _, value in cell.replicates] for cell in (base, mine))
    if min(len(before), len(after)) < MIN_REPLICATES:
        return _UNKNOWN, f"no interval: it needs {MIN_REPLICATES} repeats in both runs"
    if not any(before) and not any(after):
        return Change(0.0, 0.0, 0.0), None
    if not any(before) and all(value > 0 for value in after):
        return Change(None, math.inf, None), None
    if not any(after) and all(value > 0 for value in before):
        return Change(-1.0, -1.0, -1.0), None
    return _UNKNOWN, "zero in some repeats: a change from zero has no percentage"


def _exact_change(
    metric: Metric, base: Sequence[TrialAnalysis], mine: Sequence[TrialAnalysis]
) -> Change:
    """From the least to the most that the launches of both runs were granted."""
    # Pools of one size are cut alike, so that the figures may be held against each other as is.
    pools = {
        trial.granted.kv_cache_memory_bytes for trial in (*base, *mine) if trial.granted_observed
    }
    rounded = metric.name == "kv.kv_bytes_per_token" and len(pools) > 1
    before, after = (_extremes(metric, side, rounded=rounded) for side in (base, mine))
    low, high = after[0] / before[1], after[1] / before[0]
    value = low if low == high else math.sqrt(low * high)
    return Change(value - 1.0, low - 1.0, high - 1.0)


def _extremes(
    metric: Metric, trials: Sequence[TrialAnalysis], *, rounded: bool
) -> tuple[float, float]:
    ends: list[float] = []
    for trial in trials:
        value = metric.value(trial)
        if value:
            ends += [value * _cut_off(trial) if rounded else value, value]
    return min(ends), max(ends)


def _cut_off(trial: TrialAnalysis) -> Fraction:
    """A pool's last block is cut off: bytes over slots lie above the true rate by up to this."""
    blocks = trial.granted.num_blocks
    return blocks / (blocks + 1) if blocks else 1.0


# ── reasons ─────────────────────────────────────────────────────────────────────────────────


def _reasons(cells: Sequence[Cell], judgement: str) -> tuple[str, ...]:
    return tuple(
        f"{cell.variant}: {verdict.reason}"
        for cell in cells
        for verdict in _by_code(cell.verdicts)
        if verdict.verdict == judgement
    )


def _by_code(verdicts: Sequence[Verdict]) -> Iterator[Verdict]:
    """The first verdict of each kind: repeats say the same with other figures."""
    yield from {verdict.code: verdict for verdict in reversed(verdicts)}.values()


def _why_unknown(load: VariantComparison, cells: Sequence[Cell], place: int) -> str:
    lacking = [
        told
        for side in (load.sides[0], load.sides[place])
        if (told := _lacking(side, cells, alone=load.comparison is None)) is not None
    ]
    return "; ".join(lacking) or "the figure is unknown"


def _lacking(side: Side, cells: Sequence[Cell], *, alone: bool) -> str | None:
    """Why this side has no value; None if it has, or if it is ``alone`` in having trials."""
    if alone and side.counts.get("sealed"):
        return None
    if any(cell.variant == side.run and cell.value is not None for cell in cells):
        return None
    if not side.planned:
        return f"run {side.run} does not have it"
    ended = {how: count for how, count in side.counts.items() if how != "sealed"}
    if not ended:
        return f"run {side.run} does not know it"
    told = ", ".join(f"{count} {HOW_ENDED[how]}" for how, count in ended.items())
    why = f" ({_first(side.reasons)})" if side.reasons else ""
    return f"run {side.run}: {told}{why}"


def _first(reasons: Sequence[str]) -> str:
    return " ".join(reasons[0].split())[:300] if reasons else "no reason was recorded"
