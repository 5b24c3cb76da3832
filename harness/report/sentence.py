"""The opening paragraph: what was found, in words chosen by rules from the analysis.

Method, per variant: its KV pool against the baseline's and against theory; then per workload (with
several variants: under the load that shows most) its output throughput and its latency. Where both
pools hold the same, the load leads. Where layers free blocks, pools are compared by the requests of
``max_model_len`` that fit: their tokens are no tokens that could be stored. The
wording follows the effect: a difference is claimed only where an interval excludes 1 and no
replicate was judged invalid; "no difference is shown" is a result; a ratio without an interval is
called an observation. A figure judged invalid is withheld with its reason. Nothing is recommended
beyond the figures.

A variant that fails the sanity gate has no headline but that, and it comes before everything;
where several others are sound it comes second, after what was found of those.
Not covered: how answers were compared (``quality_text``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness import units
from harness.analysis.claimable import is_claimable
from harness.analysis.headline import request_length
from harness.analysis.quality import gate_failures
from harness.analysis.results import Analysis, Cell, Comparison, KvComparison, Row, Verdict
from harness.report.quality_text import judge_clause, reasons_text, standings_brief
from harness.report.tables import ratio_text, value_text
from harness.report.workload_names import workload_name
from harness.units import listed

#: More sentences about workloads than these bury the answer; the tables hold them all.
MAX_WORKLOADS = 4

#: From so many variants with sound text up there is a choice, and broken text comes second.
MIN_SOUND = 2

#: More variants than these are counted in the lead, not named.
MAX_NAMED = 4

#: The latencies that titles tell of.
LATENCIES = (("ttft_s.p50", "TTFT p50"), ("ttft_s.p90", "TTFT p90"), ("tpot_s.p50", "TPOT p50"))
#: The latencies of the opening: of each the first figure that may be claimed (``claimable``).
_TOLD = (
    ("TTFT", ("ttft_s.p50", "ttft_s.p90")),
    ("TPOT", ("tpot_s.p50",)),
)

#: Cautions that the opening tells, about all figures and about who has none.
OF_THE_RUN = ("cpu_profile", "attached", "no_interval")
OF_VARIANTS = ("variant_skipped",)


@dataclass(frozen=True, slots=True)
class Point:
    """One thing found: ``about`` names what, ``text`` goes on from there."""

    about: str
    text: str

    def __str__(self) -> str:
        return self.about + self.text


@dataclass(frozen=True, slots=True)
class Answer:
    """``lead`` is the answer in one sentence; ``points`` bear it out; ``limits`` restrict it."""

    lead: str
    points: tuple[Point, ...]
    limits: tuple[str, ...]
    withdrawn: bool = False


def answer(analysis: Analysis) -> Answer:
    """Write the opening of a report."""
    found = _without_quality(analysis)
    quality = analysis.quality
    if quality is None or analysis.headline.trials_sealed == 0:
        return found
    broken = gate_failures(quality)
    measured = [one for one in quality.variants if one.kind == "variant"]
    whole = [one for one in measured if one.variant not in broken]
    points = [
        Point(f"Answers of {names}", f": {told}") for names, told in standings_brief(whole, quality)
    ]
    if measured:
        differs = any(one.standing == "differs" for one in measured)
        yet = " Different is not yet worse." if differs else ""
        points.append(Point("Judge", f": {judge_clause(quality)}.{yet}"))
    if not broken:
        return Answer(found.lead, (*found.points, *points), found.limits)
    sound = [kv for kv in _others(analysis) if kv.variant not in broken]
    if len(sound) >= MIN_SOUND and analysis.comparisons:
        fails = _withdrawn(broken)
        out = Point("Fails the text gate", f": {fails[:1].lower()}{fails[1:]}")
        named = _are_named(sound)
        each = [_variant_point(analysis, kv, named=named) for kv in sound]
        return Answer(_many_lead(analysis, sound), (out, *each, *points), found.limits)
    without = Point(
        "Capacity and speed",
        f" (of no use with such text): {found.lead}",
    )
    standing = [point for point in found.points if point.about not in broken]
    return Answer(_withdrawn(broken), (without, *points, *standing), found.limits, withdrawn=True)


def _withdrawn(broken: Mapping[str, tuple[str, ...]]) -> str:
    """Whose gains don't count, and why: of several variants each with its first reason."""
    names = listed(list(broken))
    fails = f"The gains of {names} don't count, because the text fails the sanity gate"
    if len(broken) == 1:
        (reasons,) = broken.values()
        return f"{fails}: {reasons_text(reasons)}."
    first: dict[str, list[str]] = {}
    for name, reasons in broken.items():
        first.setdefault(reasons[0], []).append(name)
    shown = list(first.items())[:MAX_NAMED]
    told = "; ".join(f"{listed(own)}: {reason}" for reason, own in shown)
    rest = sum(map(len, broken.values())) - sum(len(own) for _, own in shown)
    return f"{fails}. {told}{f' (and {rest} more below)' if rest else ''}."


def _without_quality(analysis: Analysis) -> Answer:
    others = _others(analysis)
    if analysis.headline.trials_sealed == 0:
        return Answer(_nothing(analysis), (), _limits(analysis))
    if not analysis.kv and len(names := {trial.variant for trial in analysis.trials}) > 1:
        lead = (
            f"The reference engine ran {len(names)} variants ({', '.join(sorted(names))}), one "
            "request at a time; what that shows stands in the page's own section."
        )
        return Answer(lead, (), _limits(analysis))
    if not others or not analysis.comparisons:
        return Answer(_single_lead(analysis), _single_points(analysis), _limits(analysis))
    if len(others) == 1:
        return _one_answer(analysis, others[0])
    each = tuple(_variant_point(analysis, kv, named=_are_named(others)) for kv in others)
    return Answer(_many_lead(analysis, others), each, _limits(analysis))


def _others(analysis: Analysis) -> list[KvComparison]:
    """The variants that are held against the baseline."""
    return [kv for kv in analysis.kv if not kv.is_baseline and kv.variant not in analysis.skipped]


def _one_answer(analysis: Analysis, kv: KvComparison) -> Answer:
    """One variant: its pool leads, or where that is the baseline's the load that shows most."""
    points = _workload_points(analysis, kv.variant)
    lead = f"{_ran(analysis)}{_opening(analysis)}{kv.variant} {_pool(analysis, kv)}."
    loads = _by_weight(analysis, kv.variant)
    if kv.capacity_ratio != 1 or not loads or _weight(analysis, loads[0], kv.variant) <= 0:
        return Answer(lead, tuple(points), _limits(analysis))
    first = f"{kv.variant} against {analysis.baseline}, {points[0]}"
    pool = Point("KV pool", f": {lead[:1].lower()}{lead[1:]}")
    return Answer(first, (*points[1:], pool), _limits(analysis))


def _ran(analysis: Analysis) -> str:
    """What a run of one short try shows before all else: that everything ran to its end."""
    head = analysis.headline
    one_try = len(analysis.trials) == len({trial.variant for trial in analysis.trials})
    lost = head.trials_failed + head.trials_skipped + head.trials_unfinished
    ended = [trial.summary for trial in analysis.trials if trial.summary is not None]
    if not one_try or lost or any(each.failed for each in ended) or analysis.quality is not None:
        return ""
    done = units.format_count(sum(each.completed for each in ended))
    return (
        f"It ran: {units.counted(head.trials_sealed, 'server')} started and all {done} requests "
        "were answered. "
    )


def _opening(analysis: Analysis) -> str:
    budget = _budget(analysis)
    return f"{budget[:1].upper()}{budget[1:]}, " if budget else ""


def _many_lead(analysis: Analysis, others: Sequence[KvComparison]) -> str:
    """What each variant's pool holds against the baseline's; a count where they are too many."""
    if not _are_named(others):
        budget = f", {_budget(analysis)}" if _budget(analysis) else ""
        return f"{len(others)} variants were measured against {analysis.baseline}{budget}."
    by_ratio: dict[str, list[str]] = {}
    for kv in others:
        by_ratio.setdefault(units.format_ratio(kv.capacity_ratio), []).append(kv.variant)
    verbs = ["holds" if len(names) == 1 else "hold" for names in by_ratio.values()]
    told = [
        f"{listed(names)} {verb} {ratio}" if verb != before else f"{listed(names)} {ratio}"
        for (ratio, names), verb, before in zip(by_ratio.items(), verbs, ["", *verbs], strict=False)
    ]
    exact = ", exactly as predicted" if all(kv.agrees for kv in others) else ""
    held = f"the KV tokens of {analysis.baseline}"
    if length := request_length(analysis.kv):
        held = f"as many requests of {units.format_count(length)} tokens as {analysis.baseline}"
    return f"{_ran(analysis)}{_opening(analysis)}{listed(told)} {held}{exact}."


def _are_named(others: Sequence[KvComparison]) -> bool:
    """Whether the lead says what the pool of each variant holds."""
    return len(others) <= MAX_NAMED and all(kv.capacity_ratio is not None for kv in others)


def _variant_point(analysis: Analysis, kv: KvComparison, *, named: bool) -> Point:
    """One variant among several: its pool, and the load under which it differs most."""
    ordered = _by_weight(analysis, kv.variant)
    ratio = units.format_ratio(kv.capacity_ratio)
    held = f": {_held(analysis, kv)}, {ratio} {analysis.baseline}'s."
    pool = held if named else f" {_pool(analysis, kv)}."
    if not ordered:
        return Point(kv.variant, pool)
    return Point(kv.variant, f"{pool} {_under(analysis, ordered[0], kv.variant)}")


def _held(analysis: Analysis, kv: KvComparison) -> str:
    """``10,240 KV tokens``, or ``8.89 requests of 4,096 tokens`` where tokens say nothing."""
    length = request_length(analysis.kv)
    if length is None:
        return f"{units.format_count(kv.granted.kv_cache_tokens)} KV tokens"
    fits = units.format_count(kv.granted.max_concurrency, 2)
    return f"{fits} requests of {units.format_count(length)} tokens"


def _nothing(analysis: Analysis) -> str:
    reasons = dict.fromkeys(t.reason for t in analysis.trials if t.reason)
    told = "; ".join(reasons) if reasons else "no trial was finished"
    return f"Nothing was measured: {told}."


def _pool(analysis: Analysis, kv: KvComparison) -> str:
    """``holds 2.00× the KV tokens of fp16 (5,120 → 10,240 tokens, exactly as predicted)``."""
    base = next((other for other in analysis.kv if other.is_baseline), None)
    before = base.granted.kv_cache_tokens if base else None
    after = kv.granted.kv_cache_tokens
    if before is None or after is None or kv.capacity_ratio is None:
        why = kv.predicted_reason or "the engine did not report both"
        return f"has a KV capacity that can't be held against {analysis.baseline}'s ({why})"
    if (length := request_length(analysis.kv)) is not None:
        return _by_requests(analysis, kv, length)
    figures = _from_to(
        f"{units.format_count(before)} tokens", f"{units.format_count(after)} tokens"
    )
    return (
        f"holds {_times(kv.capacity_ratio)} KV tokens "
        f"{_as_base(kv.capacity_ratio, analysis.baseline)} ({figures}{_against_theory(kv)})"
    )


def _by_requests(analysis: Analysis, kv: KvComparison, length: int) -> str:
    """``holds 3.56× as many requests of 4,096 tokens as full (2.50 → 8.89, …)``."""
    base = next(other for other in analysis.kv if other.is_baseline)
    sides = (base.granted.max_concurrency, kv.granted.max_concurrency)
    before, after = (units.format_count(fits, 2) for fits in sides)
    times = "" if kv.capacity_ratio == 1 else f"{units.format_ratio(kv.capacity_ratio)} "
    return (
        f"holds {times}as many requests of {units.format_count(length)} tokens as "
        f"{analysis.baseline} ({_from_to(before, after)}{_against_theory(kv)})"
    )


def _budget(analysis: Analysis) -> str:
    if analysis.kv_budget_mode == "equal_bytes" and analysis.kv_budget_bytes is not None:
        return f"in the same {units.format_bytes(analysis.kv_budget_bytes)} of KV memory"
    return {
        "equal_bytes": "in the same KV memory",
        "equal_tokens": "with pools of equal tokens",
        "engine": "with the pool that the engine chose for each",
    }.get(analysis.kv_budget_mode or "", "")


def _times(ratio: float) -> str:
    return "as many" if ratio == 1 else f"{units.format_ratio(ratio)} the"


def _as_base(ratio: float, baseline: str) -> str:
    return f"as {baseline}" if ratio == 1 else f"of {baseline}"


def _against_theory(kv: KvComparison) -> str:
    if kv.agrees:
        return ", exactly as predicted"
    if kv.error_fraction is None:
        return ", without a prediction to hold it against"
    sign = "more" if kv.error_fraction > 0 else "less"
    return f", {units.format_percent(abs(kv.error_fraction))} {sign} than predicted"


def _workload_points(analysis: Analysis, variant: str) -> list[Point]:
    ordered = _by_weight(analysis, variant)
    points = [_workload_point(analysis, c, variant) for c in ordered[:MAX_WORKLOADS]]
    if len(ordered) > MAX_WORKLOADS:
        rest = len(ordered) - MAX_WORKLOADS
        more = units.counted(rest, "more workload")
        points.append(Point(more, f" {'are' if rest > 1 else 'is'} in the tables below."))
    return points


def _by_weight(analysis: Analysis, variant: str) -> list[Comparison]:
    """The workloads under which the variant was run, those that show most first."""
    comparisons = [c for c in analysis.comparisons if variant in c.variants]
    return sorted(comparisons, key=lambda c: _weight(analysis, c, variant), reverse=True)


def _weight(analysis: Analysis, comparison: Comparison, variant: str) -> float:
    """How much there is to say: the size of a shown effect, nothing shown, nothing usable.

    Throughput comes before latencies, whose ratios run further.
    """
    cell = comparison.cell("output_throughput", variant)
    if cell is None or cell.ratio is None or cell.effect == "unknown":
        return -1.0
    if cell.effect in ("higher", "lower"):
        return 1.0 + abs(cell.ratio - 1.0)
    shown = (m for _, metrics in _TOLD for m in metrics)
    claimed = [m for m in shown if is_claimable(analysis, comparison, m, variant)]
    cells = (comparison.cell(metric, variant) for metric in claimed)
    return max((_latency_weight(c.ratio) for c in cells if c and c.ratio), default=0.0)


def _latency_weight(ratio: float) -> float:
    """Below 1 however large the effect."""
    return 1.0 - min(ratio, 1.0 / ratio)


def _workload_point(analysis: Analysis, comparison: Comparison, variant: str) -> Point:
    about = workload_name(analysis, comparison)
    return Point(about, _under(analysis, comparison, variant).removeprefix(about))


def _under(analysis: Analysis, comparison: Comparison, variant: str) -> str:
    """``KV-bound (pool full): output throughput 1.30× [1.19, 1.41], better; …``."""
    limited = comparison.workload_label in analysis.headline.pool_limited_workloads
    where = _shared(comparison) + ("pool full" if limited else "pool not full")
    latencies = _latencies(analysis, comparison, variant)
    told = "; ".join([_throughput(comparison, variant), *latencies])
    return f"{workload_name(analysis, comparison)} ({where}): {told}.{_care(comparison, variant)}"


def _shared(comparison: Comparison) -> str:
    """How much of each prompt is the same: a gain by sharing is worth no more than that."""
    shared = comparison.workload.get("shared_prefix_tokens")
    if not shared:
        return ""
    length = units.format_count(comparison.workload.get("context_tokens"))
    return f"{units.format_count(shared)} of {length} prompt tokens shared, "


def _throughput(comparison: Comparison, variant: str) -> str:
    row = comparison.row("output_throughput")
    cell = comparison.cell("output_throughput", variant)
    base = comparison.cell("output_throughput", comparison.baseline)
    if row is None or cell is None or base is None:
        return "output throughput was not measured"
    return "output throughput " + _claim(row, base, cell)


def _claim(row: Row, base: Cell, cell: Cell) -> str:
    """What may be said of one figure against the baseline's."""
    invalid = [side for side in (base, cell) if side.verdict == "invalid"]
    if invalid:
        return f"is withheld: {_why(invalid)}"
    if cell.value is None or base.value is None or cell.ratio is None:
        return "was not measured on both sides"
    ratio = ratio_text(cell.ratio, cell.interval)
    figures = _from_to(value_text(base.value, row.unit), value_text(cell.value, row.unit))
    if cell.effect == "no difference shown":
        return f"shows no difference ({ratio})"
    if cell.effect in ("higher", "lower"):
        return f"{ratio}, {_side(cell)} ({figures})"
    count = min(len(base.replicates), len(cell.replicates))
    runs = "one repeat" if count == 1 else units.counted(count, "repeat")
    return f"{ratio} in {runs}, without an interval ({figures})"


def _from_to(before: str, after: str) -> str:
    """``162.8 → 214.6 tok/s``: a unit that both have is said once, and so is the same figure."""
    if before == after:
        return after
    unit = after.partition(" ")[2]
    return f"{before.removesuffix(f' {unit}') if unit else before} → {after}"


def _side(cell: Cell) -> str:
    """``better`` or ``worse``, where the metric has a better side."""
    if cell.improves is None:
        return str(cell.effect)
    return "better" if cell.improves else "worse"


def _care(comparison: Comparison, variant: str) -> str:
    """Who ran out of blocks, and what else is said against either side."""
    both = (comparison.cell("output_throughput", x) for x in (comparison.baseline, variant))
    sides = [side for side in both if side is not None]
    doubts = [(c, v) for c in sides for v in c.verdicts if v.verdict == "suspect"]
    preempting = list(dict.fromkeys(c.variant for c, v in doubts if v.code == "preemptions"))
    others = list(dict.fromkeys(v.reason for _, v in doubts if v.code != "preemptions"))
    text = f" {listed(preempting)} ran out of blocks and preempted." if preempting else ""
    if others and all(side.verdict != "invalid" for side in sides):
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        text += f" To be taken with care: {_head(others[0])}{more} (reasons below the table)."
    return text


def _head(reason: str) -> str:
    """What a reason says before its evidence: ``client-bound``."""
    return reason.partition(": ")[0].rstrip(".")


def _why(cells: Iterable[Cell]) -> str:
    doubts = [v for cell in cells for v in cell.verdicts if v.verdict != "valid"]
    doubts.sort(key=_gravity)
    if not doubts:
        return "see the reasons below"
    more = len({verdict.reason for verdict in doubts}) - 1
    first = doubts[0].reason.rstrip(".")
    return first if more < 1 else f"{first} (and {more} more below)"


def _gravity(verdict: Verdict) -> int:
    return 0 if verdict.verdict == "invalid" else 1


def _latencies(analysis: Analysis, comparison: Comparison, variant: str) -> list[str]:
    """``TTFT p50 0.61× [0.58, 0.64], better`` for what may be claimed, then what shows nothing."""
    told: list[str] = []
    even: list[str] = []
    seen: list[str] = []
    for name, metrics in _TOLD:
        claimed = [m for m in metrics if is_claimable(analysis, comparison, m, variant)]
        cell = comparison.cell(claimed[0], variant) if claimed else None
        median = _usable(comparison, metrics[0], variant)
        if cell is not None:
            label = f"{name} {claimed[0].rpartition('.')[2]}"
            why = _crowd(analysis, comparison, variant) if name == "TPOT" else ""
            told.append(f"{label} {ratio_text(cell.ratio, cell.interval)}, {_side(cell)}{why}")
        elif median is not None and median.effect == "no difference shown":
            even.append(f"{name} p50")
        elif median is not None and median.effect == "no interval":
            seen.append(f"{name} p50 {units.format_ratio(median.ratio)}")
    nothing = [f"no difference in {listed(even)} shown"] if even else []
    return [*told, *([listed(seen)] if seen else []), *nothing]


def _crowd(analysis: Analysis, comparison: Comparison, variant: str) -> str:
    """Why tokens of one request come slower where more requests run at once, and who gains."""
    tpot = comparison.cell("tpot_s.p50", variant)
    running = comparison.cell("requests_running_peak", variant)
    before = comparison.cell("requests_running_peak", comparison.baseline)
    if tpot is None or tpot.effect != "higher" or running is None or before is None:
        return ""
    if running.value is None or before.value is None or running.value <= before.value:
        return ""
    crowd = f"{units.format_count(running.value)} at once, not "
    whole = comparison.cell("e2el_s.mean", variant)
    shown = is_claimable(analysis, comparison, "e2el_s.mean", variant)
    ends = ""
    if shown and whole is not None and whole.improves:
        ends = f"; whole requests {ratio_text(whole.ratio, whole.interval)}"
    return f" ({crowd}{units.format_count(before.value)}{ends})"


def _usable(comparison: Comparison, metric: str, variant: str) -> Cell | None:
    """A variant's cell, unless its or the baseline's figure is invalid or unknown."""
    cell = comparison.cell(metric, variant)
    base = comparison.cell(metric, comparison.baseline)
    if cell is None or base is None or "invalid" in (cell.verdict, base.verdict):
        return None
    return cell


def _single_lead(analysis: Analysis) -> str:
    return (
        f"One variant, {analysis.baseline}, was measured; there is nothing to compare it with "
        "in this run."
    )


def _single_points(analysis: Analysis) -> tuple[Point, ...]:
    points: list[Point] = []
    for comparison in analysis.comparisons[:MAX_WORKLOADS]:
        row = comparison.row("output_throughput")
        cell = comparison.cell("output_throughput", comparison.baseline)
        if row is not None and cell is not None and cell.value is not None:
            if cell.verdict == "invalid":
                points.append(
                    Point(workload_name(analysis, comparison), f": withheld, {_why([cell])}.")
                )
            else:
                rate = value_text(cell.value, row.unit)
                points.append(Point(workload_name(analysis, comparison), f": {rate} of output."))
    return tuple(points)


def _limits(analysis: Analysis) -> tuple[str, ...]:
    head = analysis.headline
    ended = (
        (head.trials_failed, "failed"),
        (head.trials_skipped, "skipped"),
        (head.trials_unfinished, "not finished"),
    )
    told = [f"{count} {word}" for count, word in ended if count]
    incomplete = (
        f"Not all trials count: {head.trials_sealed} measured to the end, {', '.join(told)}."
    )
    limits = [*_cautions(analysis, OF_THE_RUN), *([incomplete] if told else [])]
    if not head.trials_sealed:
        return tuple(limits)
    limits += _cautions(analysis, OF_VARIANTS)
    if analysis.quality is not None:
        return tuple(limits)
    limits.append(
        "Answer quality was not measured in this run."
        if all(caution.code != "quality_unmeasured" for caution in analysis.cautions)
        else "Answer quality was not measured in this run: fewer bits per value can hold more "
        "tokens and still spoil the answers."
    )
    return tuple(limits)


def _cautions(analysis: Analysis, codes: Sequence[str]) -> list[str]:
    """The cautions of these codes, in the order of the codes."""
    return [each.text for code in codes for each in analysis.cautions if each.code == code]
