"""Sections about what a cache stores: growth, KV dtypes, attention heads, sliding windows.

Not covered: how requests share a pool, which ``strategy_serving`` tells.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis import breakeven, growth, window
from harness.analysis.results import Analysis, KvComparison
from harness.record import BenchRecord, TrialRecord
from harness.report.charts import Chart
from harness.report.charts.parts import tick_duration
from harness.report.charts.strategy import (
    Curve,
    Panel,
    panels,
)
from harness.report.places import places
from harness.report.section_parts import Grid, Section
from harness.report.strategy_rows import blocks_held_chart, blocks_text, throughput_text
from harness.report.tables import ratio_text
from harness.units import (
    DASH,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_ratio,
    listed,
)

_HOLDS = (
    "A smaller dtype holds more tokens in the same bytes, by the ratio of the bytes per token "
    "(scales included)."
)

# ── memory growth ───────────────────────────────────────────────────────────────────────────


def growth_section(
    _bench: BenchRecord, _records: Sequence[TrialRecord], analysis: Analysis
) -> Section | None:
    """KV memory over the context, beside device memory, which does not move."""
    found = [each for each in growth.growths(analysis) if each.bytes_per_token is not None]
    if not found:
        return None
    points = [point for each in found for point in each.points]
    worst = max(points, key=lambda point: abs(point.error_fraction))
    inside = all(point.within_a_block for point in points)
    first, sizes = found[0], [point.measured_bytes for point in points]
    verdict = (
        "every point lies within one block per request of the formula"
        if inside
        else f"the worst point is {format_percent(worst.error_fraction)} off the formula"
    )
    return Section(
        anchor="growth",
        title="KV memory over the context",
        claims=("C2", "C3", "C5", "C9"),
        theory=(
            f"{first.variant} stores {format_count(first.predicted_bytes_per_token)} bytes per "
            "token by the model's config.json, in whole blocks: KV memory in use is a straight "
            "line over the context. Device memory is not: the engine takes its whole pool at the "
            "start, so nvidia-smi (or the resident memory of a CPU server) shows the pool, never "
            "what is in use."
        ),
        lead=(
            f"Measured KV memory grows by {format_count(first.bytes_per_token)} bytes per token of "
            f"context ({format_count(first.predicted_bytes_per_token)} predicted), {verdict}; "
            f"device memory moved by {format_bytes(first.device_span_bytes)} in all, while KV in "
            f"use went from {format_bytes(min(sizes))} to {format_bytes(max(sizes))}."
        ),
        grids=tuple(_growth_grid(each) for each in found),
        charts=(_growth_chart(analysis, found),),
        measured=(
            (
                "The largest reading of the engine's block gauge during the load × the blocks it "
                "refers to × bytes per block, beside device memory at the same time."
            ),
        ),
        not_covered="Models with windows or recurrent states, which do not grow in proportion.",
        opens=len(analysis.kv) == 1,
    )


def _growth_grid(each: growth.MemoryGrowth) -> Grid:
    return Grid(
        f"{each.variant}: KV memory in use at its peak",
        (
            "context",
            "requests at once",
            "predicted",
            "measured",
            "error",
            "in blocks per request",
            "device memory, lowest to highest",
        ),
        tuple(
            (
                f"{format_count(p.context_tokens)} + {format_count(p.output_tokens)}",
                format_count(p.requests),
                format_bytes(p.predicted_bytes),
                format_bytes(p.measured_bytes),
                format_percent(p.error_fraction),
                format_count(
                    (p.measured_bytes - p.predicted_bytes) / p.block_bytes / p.requests, 2
                ),
                f"{format_bytes(p.device_low_bytes)} to {format_bytes(p.device_high_bytes)}",
            )
            for p in each.points
        ),
        numeric=frozenset(range(1, 7)),
    )


def _growth_title(found: Sequence[growth.MemoryGrowth]) -> str:
    points = [point for each in found for point in each.points]
    flat = all(each.device_flat for each in found)
    follows = all(point.within_a_block for point in points)
    left = "KV memory in use follows the formula" if follows else "KV memory in use and its formula"
    return f"{left} while device memory stays flat" if flat else f"{left}; device memory beside it"


def _growth_chart(analysis: Analysis, found: Sequence[growth.MemoryGrowth]) -> Chart:
    curves: list[Curve] = []
    device: list[Curve] = []
    for each in found:
        place = places(analysis)[each.variant]
        for count in sorted({point.requests for point in each.points}):
            own = [point for point in each.points if point.requests == count]
            x = tuple(float(point.context_tokens) for point in own)
            curves.append(
                Curve(
                    f"{each.variant}, {count} at once",
                    place + len(curves),
                    x,
                    tuple(point.measured_bytes for point in own),
                    x,
                    tuple(point.predicted_bytes for point in own),
                    "by the formula" if not curves else "",
                )
            )
            seen = [(at, p.device_high_bytes) for at, p in zip(x, own, strict=True)]
            known = [(at, float(size)) for at, size in seen if size is not None]
            device.append(
                Curve(
                    "",
                    place + len(device),
                    tuple(at for at, _ in known),
                    tuple(size for _, size in known),
                    joined=True,
                )
            )
    left = Panel("KV memory in use", "context (tokens)", "bytes", tuple(curves))
    right = Panel("Device memory", "context (tokens)", "bytes", tuple(device))
    return Chart(
        "strategy-growth",
        _growth_title(found),
        "Left: marks are the engine's own block gauge at its peak, lines the formula. Right: what "
        "NVML (on the CPU the resident memory of the server) shows for the same loads.",
        "; ".join(
            f"{each.variant} at {format_count(p.context_tokens)} tokens, {p.requests} at once: "
            f"{format_bytes(p.measured_bytes)} measured, {format_bytes(p.predicted_bytes)} "
            "predicted"
            for each in found
            for p in each.points
        ),
        lambda: panels([[left, right]]),
    )


# ── KV dtypes ───────────────────────────────────────────────────────────────────────────────


def dtype_section(
    _bench: BenchRecord, records: Sequence[TrialRecord], analysis: Analysis
) -> Section | None:
    """What each KV dtype stores and holds, and from which context on it decodes faster."""
    stored = {kv.kv_cache_dtype for kv in analysis.kv}
    fitted = {line.variant: line for line in breakeven.lines(records)}
    base = fitted.get(analysis.baseline)
    if len(stored) < 2:
        return None
    if base is None or len(fitted) < 2:
        return _held_section(analysis)
    others = [line for name, line in fitted.items() if name != analysis.baseline]
    found = [breakeven.break_even(base, line) for line in others]
    return Section(
        anchor="kv-dtypes",
        title="KV dtypes: what they hold, and where they decode faster",
        claims=("C11",),
        theory=(
            f"{_HOLDS} Time between tokens is a straight line over the context, "
            "ITL = a · context + b: reading the cache costs a per token. Where moving bytes is "
            "what takes the time, half the bytes halve a; where converting them costs more than "
            "is saved, a grows and a smaller dtype is never faster."
        ),
        lead=_dtype_finding(analysis, found),
        grids=(_dtype_grid(analysis), _line_grid(fitted, found)),
        charts=(_line_chart(analysis, fitted),),
        measured=(_line_method(base),),
        not_covered="What fewer bits cost in answer quality; contexts beyond the longest measured.",
        opens=True,
        keeps_points=True,
    )


def _held_section(analysis: Analysis) -> Section | None:
    """The same of a run without a sweep over context: what the dtypes hold."""
    told = _ratios_text(analysis)
    if analysis.kv_budget_mode != "equal_bytes" or not told:
        return None
    return Section(
        anchor="kv-dtypes",
        title="What each KV dtype holds",
        claims=("C11",),
        theory=_HOLDS,
        lead=f"In the same bytes the pool holds, against {analysis.baseline}: {told}.",
        grids=(_dtype_grid(analysis),),
        measured=("Tokens granted are what the engine says of its pool after the start.",),
        not_covered="From which context on a smaller dtype decodes faster: `kv_dtypes` sweeps it.",
    )


def _line_method(base: breakeven.Line) -> str:
    points = "Each request's time per output token, at the context in the middle of its decode. "
    if base.unit == "launch":
        return points + (
            "Every server launch has a line of its own, a variant's line is their mean, and the "
            "95 % intervals come from how far launches of one variant lie apart (pooled over the "
            f"variants, {format_count(base.degrees)} degrees of freedom)."
        )
    return points + (
        "Intervals are 95 %, over requests; those of one server launch are alike and launches "
        "were not repeated, so they are on the narrow side."
    )


def _dtype_finding(analysis: Analysis, found: Sequence[breakeven.BreakEven]) -> str:
    told = "; ".join(f"{each.variant}: {_break_text(each)}" for each in found)
    return (
        f"In the same bytes the pool holds, against {analysis.baseline}: {_ratios_text(analysis)}. "
        f"{_longest_text(analysis, found)}By the lines fitted to all contexts, where decoding "
        f"becomes faster: {told}."
    )


def _longest_text(analysis: Analysis, found: Sequence[breakeven.BreakEven]) -> str:
    """TPOT at the longest context of the sweep, where a difference is shown."""
    loads = sorted(analysis.comparisons, key=lambda c: int(c.workload["context_tokens"]))
    told = []
    for each in found:
        cells = [(load, load.cell("tpot_s.p50", each.variant)) for load in loads]
        cell = cells[-1][1] if cells else None
        if cell is None or cell.effect not in ("higher", "lower") or cell.verdict == "invalid":
            continue
        since = cells[-1][0]
        for load, own in reversed(cells):
            if own is None or own.effect != cell.effect:
                break
            since = load
        side = "faster" if cell.improves else "slower"
        start = format_count(since.workload["context_tokens"])
        ratio = ratio_text(cell.ratio, cell.interval)
        told.append(f"{each.variant} {ratio} (load by load {side} from {start} on)")
    if not told:
        return ""
    length = format_count(loads[-1].workload["context_tokens"])
    return f"TPOT p50 at {length} tokens: {', '.join(told)}. "


def _ratios_text(analysis: Analysis) -> str:
    return ", ".join(
        f"{kv.variant} {format_ratio(kv.capacity_ratio)}"
        for kv in analysis.kv
        if not kv.is_baseline and kv.capacity_ratio is not None
    )


def _break_text(each: breakeven.BreakEven) -> str:
    span = (
        f"between {format_count(each.shortest_tokens)} and {format_count(each.longest_tokens)} "
        "tokens"
    )
    if each.kind == "never":
        return f"never on this device ({span})"
    if each.kind == "always":
        return f"at every context measured ({span})"
    if each.kind == "unclear":
        return f"no difference shown ({span})"
    if each.kind == "not shown":
        return f"not shown up to {format_count(each.longest_tokens)} tokens"
    low = "no lower bound shown" if each.low_tokens is None else format_count(each.low_tokens)
    if each.context_tokens is None:
        shown = (
            "not shown"
            if each.high_tokens is None
            else f"shown from {format_count(each.high_tokens)} on"
        )
        return f"at every context measured (from {format_count(each.shortest_tokens)} on), {shown}"
    high = "no upper bound shown" if each.high_tokens is None else format_count(each.high_tokens)
    return f"from {format_count(each.context_tokens)} tokens on [{low}, {high}]"


def _dtype_grid(analysis: Analysis) -> Grid:
    rows = [
        (
            kv.variant,
            kv.kv_cache_dtype or DASH,
            format_count(kv.predicted.kv_bytes_per_token if kv.predicted else None),
            format_count(kv.predicted.kv_cache_tokens if kv.predicted else None),
            format_count(kv.granted.kv_cache_tokens),
            _capacity_text(kv),
            _state(analysis, kv),
        )
        for kv in analysis.kv
    ]
    return Grid(
        "What each dtype stores and holds in the same bytes",
        (
            "variant",
            "stored as",
            "bytes per token",
            "tokens predicted",
            "tokens granted",
            "capacity",
            "state",
        ),
        tuple(rows),
        numeric=frozenset({2, 3, 4, 5}),
    )


def _capacity_text(kv: KvComparison) -> str:
    """The measured ratio; by theory alone, and marked so, where nothing was granted."""
    if kv.capacity_ratio is not None or kv.modelled_capacity_ratio is None:
        return format_ratio(kv.capacity_ratio)
    return f"{format_ratio(kv.modelled_capacity_ratio)} modelled"


def _state(analysis: Analysis, kv: KvComparison) -> str:
    if kv.variant in analysis.skipped:
        modelled = "modelled" if kv.predicted is not None else "no theory"
        return f"skipped (see the trials); {modelled}"
    if kv.agrees is None:
        return "measured"
    return "as predicted, to the block" if kv.agrees else "not as predicted"


def _line_grid(fitted: dict[str, breakeven.Line], found: Sequence[breakeven.BreakEven]) -> Grid:
    told = {each.variant: _break_text(each) for each in found}
    return Grid(
        "Time between tokens: ITL = a · context + b, per variant",
        (
            "variant",
            "a, per 1,000 tokens of context",
            "b",
            "launches",
            "requests",
            "faster than the baseline",
        ),
        tuple(
            (
                name,
                _plus_minus(line.slope_s * 1000, line.slope_half_s * 1000),
                _plus_minus(line.intercept_s, line.intercept_half_s),
                format_count(line.launches),
                format_count(line.points),
                told.get(name, "baseline"),
            )
            for name, line in fitted.items()
        ),
        numeric=frozenset({1, 2, 3, 4}),
    )


def _plus_minus(value_s: float, half_s: float) -> str:
    return f"{format_duration(value_s)} ± {format_duration(half_s)}"


def _line_chart(analysis: Analysis, fitted: dict[str, breakeven.Line]) -> Chart:
    curves = []
    for name, line in fitted.items():
        ends = (0.0, max(line.contexts))
        curves.append(
            Curve(
                name,
                places(analysis)[name],
                line.contexts,
                line.itl_s,
                ends,
                tuple(line.intercept_s + line.slope_s * end for end in ends),
            )
        )
    panel = Panel(
        "Time between tokens, a mark per request",
        "context in the middle of the decode (tokens)",
        "ITL (lower is better)",
        tuple(curves),
        tick_duration,
    )
    return Chart(
        "strategy-break-even",
        "Time between tokens over the context, and the line fitted to each KV dtype",
        "Every mark is one request; where a variant's line runs below the baseline's it decodes "
        "faster. Lines begin at zero context only to show b.",
        "; ".join(
            f"{name}: {format_duration(line.slope_s * 1000)} per 1,000 tokens plus "
            f"{format_duration(line.intercept_s)}"
            for name, line in fitted.items()
        ),
        lambda: panels([[panel]]),
    )


# ── attention heads ─────────────────────────────────────────────────────────────────────────


def heads_section(
    _bench: BenchRecord, records: Sequence[TrialRecord], analysis: Analysis
) -> Section | None:
    """KV heads against memory, capacity and throughput."""
    heads = _kv_heads(records)
    pools = [kv for kv in analysis.kv if kv.variant in heads]
    if len({heads[kv.variant] for kv in pools}) < 2:
        return None
    return Section(
        anchor="attention-heads",
        title="KV heads: MHA, GQA and MQA",
        claims=("C2", "C10"),
        theory=(
            "Bytes per token are proportional to the KV heads, whatever the query heads, so in the "
            "same bytes the pool holds more by the inverse ratio of the heads."
        ),
        lead=_heads_lead(pools, heads),
        grids=(_heads_grid(analysis, pools, heads),),
        measured=(
            (
                "Pool and throughput of the same model with its KV heads overridden and random "
                "weights: memory and speed are true, the text means nothing."
            ),
        ),
        not_covered=(
            "Quality: not applicable here. It takes models trained with fewer KV heads to see it."
        ),
        opens=True,
        keeps_points=True,
    )


def _heads_lead(pools: Sequence[KvComparison], heads: dict[str, int]) -> str:
    exact = ", exactly as predicted" if all(kv.agrees for kv in pools) else ""
    told = listed(
        [
            f"{format_ratio(kv.capacity_ratio)} the tokens with {heads[kv.variant]} ({kv.variant})"
            for kv in pools
            if not kv.is_baseline
        ]
    )
    base = f"{heads[pools[0].variant]} KV heads ({pools[0].variant})"
    return f"Against {base} the same bytes hold {told}{exact}."


def _kv_heads(records: Sequence[TrialRecord]) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in records:
        overrides = record.run.trial.server_flags.get("hf_overrides")
        heads = overrides.get("num_key_value_heads") if isinstance(overrides, dict) else None
        if isinstance(heads, int):
            found[record.run.trial.variant] = heads
    return found


def _heads_grid(analysis: Analysis, pools: Sequence[KvComparison], heads: dict[str, int]) -> Grid:
    return Grid(
        "The same model with other numbers of KV heads, in the same bytes",
        (
            "variant",
            "KV heads",
            "bytes per token",
            "tokens predicted",
            "tokens granted",
            "capacity by heads",
            "capacity measured",
            "output throughput",
        ),
        tuple(_heads_row(analysis, kv, heads, pools[0]) for kv in pools),
        numeric=frozenset(range(1, 8)),
    )


def _heads_row(
    analysis: Analysis, kv: KvComparison, heads: dict[str, int], first: KvComparison
) -> tuple[str, ...]:
    return (
        kv.variant,
        format_count(heads[kv.variant]),
        format_count(kv.predicted.kv_bytes_per_token if kv.predicted else None),
        format_count(kv.predicted.kv_cache_tokens if kv.predicted else None),
        format_count(kv.granted.kv_cache_tokens),
        format_ratio(heads[first.variant] / heads[kv.variant]),
        format_ratio(kv.capacity_ratio),
        throughput_text(analysis, kv.variant),
    )


# ── sliding windows ─────────────────────────────────────────────────────────────────────────


def window_section(
    _bench: BenchRecord, records: Sequence[TrialRecord], analysis: Analysis
) -> Section | None:
    """Blocks per request with and without a window, against the cap."""
    found = window.window_results(analysis.trials, records)
    if not found:
        return None
    windowed = [each for each in found if each.window_tokens]
    held = all(each.holds for each in windowed)
    told = ", ".join(
        f"{each.variant} at most {format_count(each.measured_blocks, 1)} blocks "
        f"(cap {each.predicted_blocks})"
        for each in windowed
    )
    full = next((each for each in found if not each.window_tokens), None)
    against = f"; full attention {format_count(full.measured_blocks, 1)}" if full else ""
    return Section(
        anchor="sliding-window",
        title="A window caps the cache",
        claims=("C13",),
        theory=(
            "A windowed layer keeps the last W − 1 tokens and those of the scheduler's step in "
            "flight, in whole blocks and one more since a window need not begin at a block's edge: "
            "ceil((W − 1 + max_num_batched_tokens) / block) + 1 blocks, however long the request."
        ),
        lead=(
            f"Per running request, of {format_count(found[0].length_tokens)} tokens: {told}"
            f"{against}. The cap {'holds' if held else 'does not hold everywhere'}."
            f"{_untrained(records)}"
        ),
        grids=(_window_grid(analysis, found),),
        charts=(_window_chart(analysis, found),),
        measured=(
            (
                "The largest number of blocks per running request over the samples of the load, "
                "and how many requests of max_model_len the engine says its pool takes, under the "
                "same weights."
            ),
        ),
        not_covered=_window_limits(analysis),
        opens=True,
        keeps_points=True,
    )


def _window_limits(analysis: Analysis) -> str:
    asked = (
        "What it costs in answers is told under answer quality"
        if analysis.quality is not None
        else "What it costs in answers was not asked in this run"
    )
    return (
        f"{asked}. These weights were trained without this window, which makes the loss larger "
        "than a model made with one would show; models that mix windowed and full layers."
    )


def _window_grid(analysis: Analysis, found: Sequence[window.WindowResult]) -> Grid:
    pools = {kv.variant: kv for kv in analysis.kv}
    return Grid(
        f"A request of {format_count(found[0].length_tokens)} tokens",
        (
            "variant",
            "window",
            "cap per request",
            "measured per request",
            "requests predicted",
            "requests granted",
            "capacity",
            "output throughput",
        ),
        tuple(
            (
                each.variant,
                format_count(each.window_tokens),
                blocks_text(each.predicted_blocks, each.block_bytes),
                f"{format_count(each.measured_blocks, 1)} blocks",
                _fits(pools, each.variant, predicted=True),
                _fits(pools, each.variant, predicted=False),
                format_ratio(pools[each.variant].capacity_ratio),
                throughput_text(analysis, each.variant),
            )
            for each in found
        ),
        numeric=frozenset(range(1, 8)),
    )


def _fits(pools: dict[str, KvComparison], variant: str, *, predicted: bool) -> str:
    """Requests of max_model_len: a window's tokens are more than the pool's bytes could store."""
    pool = pools[variant].predicted if predicted else pools[variant].granted
    return format_count(pool.max_concurrency if pool is not None else None, 2)


def _untrained(records: Sequence[TrialRecord]) -> str:
    """What the text says little of: a window that the weights were not made with."""
    overrides = (record.run.trial.server_flags.get("hf_overrides") for record in records)
    forced = any(isinstance(own, dict) and own.get("sliding_window") for own in overrides)
    return " These weights were not trained with such a window." if forced else ""


def _window_chart(analysis: Analysis, found: Sequence[window.WindowResult]) -> Chart:
    return blocks_held_chart(
        analysis,
        found,
        name="strategy-window",
        title="Blocks that one request holds, with and without a window",
    )
