"""The section of a run on the reference engine: what no cache costs, what a reservation wastes.

Method: ``analysis.scaling`` read off the run, in sentences, tables and two charts. Every figure is
the reference engine's, one request at a time; the section says so, since none of them may be set
beside a server's throughput.

Not covered: how the figures are worked out (``analysis.scaling``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from harness import units
from harness.analysis.results import Analysis
from harness.analysis.scaling import Curve, PowerFit, Scaling, TimeGrowth, VariantScaling, scaling
from harness.record import BenchRecord, TrialRecord
from harness.report.charts import Chart
from harness.report.charts.reference import HeldBar, TimeLine, held_bars, time_lines
from harness.report.section_parts import Grid, Section
from harness.theory.recompute import kv_computations, redundant_kv_computations

AXIS = (
    "Times are those of transformers answering one request at a time, an axis of its own: they are "
    "never set beside a server's throughput."
)
_KEEPS = {
    "none": "recomputes everything",
    "growing": "keeps keys and values",
    "static": "keeps them in a reservation",
}


def section(
    bench: BenchRecord, trials: Sequence[TrialRecord], _analysis: Analysis
) -> Section | None:
    """The section of this run, if it was taken on the reference engine."""
    found = scaling(trials)
    if found is None:
        return None
    claims = tuple(str(claim) for claim in bench.scenario.get("claims") or ())
    timed = found.recompute_per_token is not None
    return Section(
        anchor="reference",
        title="With and without a KV cache" if timed else "Reserved and growing caches",
        lead=_time_lead(found) if timed else _byte_lead(found),
        claims=claims or (("C1",) if timed else ("C6",)),
        theory=_time_theory(found) if timed else _byte_theory(found),
        measured=tuple(_measured(found)),
        grids=tuple(grid for grid in (_exponents(found), _steps(found), _held(found)) if grid.rows),
        charts=tuple(_charts(found)),
        not_covered="Batches and serving. A growing cache is concatenated at every step, so for a "
        "moment one layer's old and new tensors exist side by side; its bytes are read after that.",
        opens=True,
    )


# ── sentences ───────────────────────────────────────────────────────────────────────────────


def fit_text(fit: PowerFit | None) -> str:
    """``1.98 [1.93, 2.04]``; without an interval the bare exponent; None → an em dash."""
    if fit is None:
        return units.DASH
    if fit.low is None or fit.high is None:
        return units.format_count(fit.exponent, 2)
    low, high = (units.format_count(end, 2) for end in (fit.low, fit.high))
    return f"{units.format_count(fit.exponent, 2)} [{low}, {high}]"


def _time_lead(found: Scaling) -> str:
    bare, kept = found.of_cache("none"), found.of_cache("growing")
    pairs = _common(bare, kept)
    if not pairs:
        return "No length was measured both with and without a cache."
    length, without_s, with_s = pairs[-1]
    return (
        f"At {units.format_count(length)} tokens the next token takes "
        f"{units.format_duration(without_s)} without a cache and {units.format_duration(with_s)} "
        f"with one: {units.format_ratio(without_s / with_s, 1)} as long."
    )


def _common(
    left: VariantScaling | None, right: VariantScaling | None
) -> list[tuple[float, float, float]]:
    if left is None or right is None:
        return []
    theirs = dict(right.per_token.curve)
    return [(n, t, theirs[n]) for n, t in left.per_token.curve if n in theirs]


def _time_theory(found: Scaling) -> str:
    texts = [
        f"{counted.workload_label}: {units.format_count(counted.without_cache)} keys and values "
        f"are computed without a cache, {units.format_count(counted.with_cache)} with one"
        for counted in found.counted[:1]
    ]
    counts = f" {texts[0]}." if texts else ""
    return (
        "Counted step by step, recomputation grows in proportion to the length for one token and "
        f"as its square over a sequence: exponents 1 and 2.{counts} Reading the weights costs "
        "every token the same with and without a cache, so it is taken off before the exponents "
        f"are fitted. {_chapter()}"
    )


def _chapter() -> str:
    """The chapter's own example of recomputation, counted step by step."""
    prompt, output = 1000, 500
    told, computed, again = (
        units.format_count(count)
        for count in (
            (prompt + output) * output,
            kv_computations(prompt, output, cached=False),
            redundant_kv_computations(prompt, output),
        )
    )
    return (
        f"The chapter's {told} for {output} tokens after a prompt of {units.format_count(prompt)} "
        f"takes every step at its final length; counted, {computed} are computed, {again} of them "
        "again."
    )


def _measured(found: Scaling) -> Iterator[str]:
    single, whole = found.recompute_per_token, found.recompute_total
    if single is not None and whole is not None:
        yield (
            "What recomputation adds grows with length to the power "
            f"{fit_text(single.fit)} for one token and {fit_text(whole.fit)} for the whole "
            "sequence (slopes on logarithmic axes; "
            f"95 % intervals over {_launches(single, whole)} launches)."
        )
    static, growing = found.of_cache("static"), found.of_cache("growing")
    if static is not None and growing is not None:
        yield (
            f"{growing.variant} holds "
            f"{units.format_bytes(growing.allocated_bytes)} for the same requests, "
            f"{units.format_percent(growing.waste)} of it empty."
        )
    yield f"{AXIS} Engine: {found.engine_version or units.DASH}."


def _launches(*growths: TimeGrowth) -> str:
    counts = {growth.fit.launches for growth in growths if growth.fit is not None}
    return " to ".join(str(count) for count in sorted(counts)) or "no"


def _byte_lead(found: Scaling) -> str:
    static = found.of_cache("static")
    if static is None:
        kept = found.variants[0]
        return (
            f"{kept.variant} holds {units.format_bytes(kept.allocated_bytes)} for one request of "
            "each load."
        )
    return (
        f"Whole-length reservations hold {units.format_bytes(static.allocated_bytes)} for the "
        f"{len(static.held)} requests, of which {units.format_percent(static.waste)} is empty."
    )


def _byte_theory(found: Scaling) -> str:
    rate = units.format_count(found.kv_bytes_per_token)
    return (
        f"A token takes {rate} bytes in all layers (2 × layers × KV heads × head dimension × bytes "
        "per element). A growing cache holds as many as the sequence has; a reservation holds its "
        "whole length from the first step on."
    )


# ── tables ──────────────────────────────────────────────────────────────────────────────────


def _exponents(found: Scaling) -> Grid:
    rows = [
        (f"{v.variant} ({_KEEPS.get(v.cache, v.cache)})", v.per_token, v.total)
        for v in found.variants
    ]
    if found.recompute_per_token is not None and found.recompute_total is not None:
        rows.append(
            ("difference: recomputation alone", found.recompute_per_token, found.recompute_total)
        )
    fitted = any(growth.fit is not None for _, *growths in rows for growth in growths)
    return Grid(
        "Fitted exponents of time against length, with 95 % intervals over the launches",
        ("Variant", "time per token", "fitted over", "time of a sequence", "fitted over"),
        tuple(
            (name, fit_text(one.fit), _span(one.fit), fit_text(all_.fit), _span(all_.fit))
            for name, one, all_ in rows
        )
        if fitted
        else (),
        frozenset({1, 2, 3, 4}),
    )


def _span(fit: PowerFit | None) -> str:
    if fit is None:
        return units.DASH
    return f"{units.format_count(fit.from_tokens)}–{units.format_count(fit.to_tokens)} tokens"


def _steps(found: Scaling) -> Grid:
    lengths = sorted({n for v in found.variants for n, _ in v.per_token.curve})
    curves = [dict(v.per_token.curve) for v in found.variants]
    rows = (
        (units.format_count(n), *(units.format_duration(curve.get(n)) for curve in curves))
        for n in lengths
    )
    several = len(lengths) > 1 and found.recompute_per_token is not None
    return Grid(
        "Time per token by the tokens it sees, medians of the launches",
        ("Tokens", *(v.variant for v in found.variants)),
        tuple(rows) if several else (),
        frozenset(range(len(found.variants) + 1)),
    )


def _held(found: Scaling) -> Grid:
    return Grid(
        "Bytes of the cache's tensors at the last step of a request, measured on their storage",
        ("Request", "variant", "tokens", "needed (theory)", "held", "empty"),
        tuple(
            (
                held.workload_label,
                v.variant,
                units.format_count(held.sequence_tokens),
                units.format_bytes(held.needed_bytes),
                units.format_bytes(held.allocated_bytes),
                _empty(held.needed_bytes, held.allocated_bytes),
            )
            for v in found.variants
            for held in v.held
        ),
        frozenset({2, 3, 4, 5}),
    )


def _empty(needed: int | None, held: int) -> str:
    return units.format_percent(1.0 - needed / held if needed is not None and held else None)


# ── charts ──────────────────────────────────────────────────────────────────────────────────


def _charts(found: Scaling) -> Iterator[Chart]:
    if found.recompute_per_token is not None:
        yield Chart(
            "time-by-length",
            _time_title(found),
            "Both axes are logarithmic: a straight line is a power of the length, and its slope "
            "the exponent. Marks are medians of the launches; the thin line is what recomputation "
            "adds (the difference of the two). Left one token, right a whole sequence.",
            "; ".join(_curve_alt(v.variant, v.per_token.curve) for v in found.variants),
            lambda: time_lines(
                tuple(_times(found, lambda v: v.per_token, found.recompute_per_token)),
                tuple(_times(found, lambda v: v.total, found.recompute_total)),
            ),
        )
    if found.of_cache("static") is not None:
        yield Chart(
            "reserved-bytes",
            _byte_lead(found).rstrip("."),
            "Bars are the bytes of the cache's tensors at a request's last step, measured; the "
            "upright mark is what its tokens need by the formula. Beyond the mark nothing is kept.",
            "; ".join(
                f"{v.variant} {h.workload_label}: {units.format_bytes(h.allocated_bytes)} held, "
                f"{units.format_bytes(h.needed_bytes)} needed"
                for v in found.variants
                for h in v.held
            ),
            lambda: held_bars(_bars(found)),
        )


def _time_title(found: Scaling) -> str:
    whole = found.recompute_total
    if whole is None or whole.fit is None:
        return _time_lead(found)
    return f"{_time_lead(found)} Over a sequence recomputation grows as N^{fit_text(whole.fit)}"


def _curve_alt(name: str, curve: Curve) -> str:
    points = ", ".join(
        f"{units.format_duration(t)} at {units.format_count(n)} tokens" for n, t in curve
    )
    return f"{name}: {points}"


def _times(
    found: Scaling, of: Callable[[VariantScaling], TimeGrowth], spared: TimeGrowth | None
) -> Iterator[TimeLine]:
    """The line of every variant, and of what recomputation adds where it adds anything."""
    for place, variant in enumerate(found.variants):
        growth = of(variant)
        label = f"{variant.variant}: exponent {fit_text(growth.fit)}"
        yield TimeLine(label, place, tuple(growth.curve))
    extra = tuple((n, t) for n, t in spared.curve if t > 0) if spared is not None else ()
    if extra and spared is not None:
        yield TimeLine(f"difference: exponent {fit_text(spared.fit)}", None, extra)


def _bars(found: Scaling) -> list[HeldBar]:
    """Every request's cache, the shortest request first, its variants side by side."""
    bars = [(h, v, place) for place, v in enumerate(found.variants) for h in v.held]
    bars.sort(key=lambda bar: (bar[0].sequence_tokens, bar[0].workload_label, bar[2]))
    return [
        HeldBar(
            f"{h.workload_label.split(':')[0]}, {v.variant}",
            place,
            h.allocated_bytes,
            h.needed_bytes,
        )
        for h, v, place in bars
    ]
