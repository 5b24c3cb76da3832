"""Sections about how requests share a pool: reservations, prefixes, returning turns, the cliff.

Not covered: what a cache stores per token, which ``strategy_memory`` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from harness.analysis import cliff, offload, prefix, waste
from harness.analysis.results import Analysis, Interval
from harness.record import BenchRecord, TrialRecord
from harness.report.charts import Ceiling, Chart, Pair
from harness.report.charts.parts import tick_duration
from harness.report.charts.strategy import (
    CeilingLine,
    Curve,
    Panel,
    Shares,
    panels,
    shares,
)
from harness.report.places import places
from harness.report.section_parts import Grid, Section
from harness.report.strategy_rows import pair_chart
from harness.report.sweeps import ceiling
from harness.report.tables import ratio_text
from harness.theory.offload import break_even_link, recompute_s
from harness.theory.reservation import unused_share
from harness.units import (
    DASH,
    Tokens,
    format_bandwidth,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    listed,
)

#: The chapter's own example (C6): three requests in reservations of 32K tokens.
_CHAPTER_LENGTHS: tuple[Tokens, ...] = (500, 2048, 100)
_CHAPTER_RESERVED: Tokens = 32768

# ── reservations ────────────────────────────────────────────────────────────────────────────


def waste_section(
    _bench: BenchRecord, records: Sequence[TrialRecord], analysis: Analysis
) -> Section | None:
    """Whole-length reservations beside paging, under requests of mixed lengths."""
    found = waste.wastes(analysis, records)
    whole, paged = _first(found, "whole length"), _first(found, "blocks")
    if whole is None or paged is None:
        return None
    ratio, interval = _throughput_ratio(analysis, whole.variant, paged.variant)
    reserved = next(each for each in found if each.variant == whole.variant)
    return Section(
        anchor="reservations",
        title="Whole-length reservations against paging",
        lead=(
            f"Whole-length reservations would leave {format_percent(whole.of_held)} of what they "
            f"hold empty, pages {format_percent(paged.of_held)}; paging keeps "
            f"{format_count(paged.running_mean, 1)} requests in flight, on average, where "
            f"{format_count(whole.running_mean, 1)} would be, and serves "
            f"{ratio_text(ratio, interval)} the output tokens per second."
        ),
        claims=("C6", "C7"),
        theory=_waste_theory(reserved),
        measured=(
            (
                "The engine always pages. For whole lengths its max_num_seqs is capped at "
                "floor(pool tokens / max_model_len), which is what reservations would let in: "
                "throughput and requests in flight are then real, the reservations themselves are "
                "emulated."
            ),
            (
                "Stored: tokens of the requests past their first chunk, by the request log; held: "
                "blocks by the engine's gauge, or running requests × max_model_len."
            ),
        ),
        grids=(_waste_grid(found),),
        charts=(_waste_chart((whole, paged)),),
        not_covered=(
            "Other costs of contiguous caches, such as copying when one grows; on the reference "
            "engine see the scenario static_vs_growing_cache."
        ),
        opens=True,
        keeps_points=True,
    )


def _first(found: Sequence[waste.Waste], reserves: str) -> waste.Reservation | None:
    """The first variant that reserves in this way."""
    kinds = waste.reservations(found)
    return next((each for each in kinds if each.reserves == reserves), None)


def _waste_theory(each: waste.Waste) -> str:
    example = unused_share(_CHAPTER_LENGTHS, _CHAPTER_RESERVED)
    predicted = format_percent(each.of_held_predicted)
    return (
        f"The chapter's three requests leave {format_percent(example)} of their reservations "
        f"empty. This load's requests store {format_count(each.stored_predicted_tokens)} tokens on "
        f"average while they are in flight, of {format_count(each.max_model_len)} reserved: "
        f"{predicted} empty. With pages only the tail of each request's last block is empty."
    )


def _throughput_ratio(
    analysis: Analysis, base: str, variant: str
) -> tuple[float | None, Interval | None]:
    for comparison in analysis.comparisons:
        cell = comparison.cell("output_throughput", variant)
        if cell is not None and comparison.baseline == base:
            return cell.ratio, cell.interval
    return None, None


def _waste_grid(found: Sequence[waste.Waste]) -> Grid:
    return Grid(
        "What requests hold and what they store, time-weighted means over the load",
        (
            "variant",
            "stamp",
            "holds",
            "in flight, mean",
            "in flight, peak",
            "tokens stored",
            "tokens held",
            "empty of held",
            "by theory",
            "wasted of pool",
        ),
        tuple(
            (
                each.variant,
                each.stamp,
                each.reserves,
                format_count(each.running_mean, 1),
                format_count(each.running_peak),
                format_count(each.stored_tokens),
                format_count(each.held_tokens),
                format_percent(each.of_held),
                format_percent(each.of_held_predicted),
                format_percent(each.of_pool),
            )
            for each in found
        ),
        numeric=frozenset(range(3, 10)),
    )


def _waste_chart(found: Sequence[waste.Reservation]) -> Chart:
    given = [
        Shares(f"{each.variant} ({each.stamp})", each.stored_of_pool, each.of_pool)
        for each in found
    ]
    return Chart(
        "strategy-waste",
        "Reservations fill the pool with emptiness; pages fill it with tokens",
        "The whole pool, mean over the load and the repeats. Held but storing nothing is waste; "
        "free is what more requests could use.",
        "; ".join(
            f"{bar.label}: {format_percent(bar.stored)} stored, {format_percent(bar.held)} wasted"
            for bar in given
        ),
        lambda: shares(given),
    )


# ── shared prefixes ─────────────────────────────────────────────────────────────────────────


def prefix_section(
    _bench: BenchRecord, records: Sequence[TrialRecord], analysis: Analysis
) -> Section | None:
    """Blocks and hits of requests that share a prefix."""
    found = prefix.sharings(analysis.trials, records)
    shared = [each for each in found if each.caching and each.shared_blocks]
    if not shared:
        return None
    first, apart = _pair(found, shared, records)
    settings = {prefix.other_settings(record) for record in records}
    return Section(
        anchor="prefix-sharing",
        title="A shared prefix is stored once",
        lead=_prefix_lead(found, first, apart),
        claims=("C8",),
        theory=(
            f"Only whole blocks are shared: a prefix of {format_count(first.prefix_tokens)} tokens "
            f"is {first.shared_blocks} blocks of {first.block_size} and a rest that every request "
            f"stores itself. {first.requests} requests of {first.blocks_per_request} blocks hold "
            f"{first.shared_blocks} + {first.requests} × "
            f"({first.blocks_per_request} − {first.shared_blocks}) = {first.predicted_blocks} "
            f"blocks instead of {first.unshared_blocks}. A prefix shorter than "
            "a block shares nothing: the copy-free floor."
        ),
        measured=(
            (
                "Blocks: the engine's gauge at its peak × the blocks it refers to. Hits: prompt "
                "tokens that the engine's counter says were found stored. The warm-up carries the "
                "prefix too, so every measured request can find it."
            ),
        ),
        grids=(_prefix_grid(found),),
        charts=(_prefix_chart(analysis, found),),
        not_covered="Prefixes that are evicted between requests; several prefixes at once.",
        # Where other settings are compared too, sharing is not what the run asks about.
        opens=len(settings) == 1,
        keeps_points=True,
    )


def _pair(
    found: Sequence[prefix.Sharing],
    shared: Sequence[prefix.Sharing],
    records: Sequence[TrialRecord],
) -> tuple[prefix.Sharing, prefix.Sharing | None]:
    """A trial that shares, and one under the same load that differs in nothing but that."""
    rest = {r.run.trial.trial_id: prefix.other_settings(r) for r in records}
    for first in shared:
        for other in found:
            alike = rest[other.trial_id] == rest[first.trial_id]
            if not other.caching and alike and other.workload_label == first.workload_label:
                return first, other
    return shared[0], None


def _prefix_lead(
    found: Sequence[prefix.Sharing], first: prefix.Sharing, apart: prefix.Sharing | None
) -> str:
    exact = all(each.exact for each in found)
    return (
        f"{first.requests} requests with {format_count(first.prefix_tokens)} of their "
        f"{format_count(first.prompt_tokens)} prompt tokens in common hold "
        f"{format_count(first.measured_blocks)} blocks{_instead(first, apart)}, and "
        f"{format_count(first.measured_hit_tokens)} prompt tokens were not computed again; "
        f"{'every figure is' if exact else 'not every figure is'} as predicted, to the block."
    )


def _instead(first: prefix.Sharing, apart: prefix.Sharing | None) -> str:
    """What as many requests hold without sharing: as measured, if the pool took them all."""
    if apart is None or apart.measured_blocks is None:
        return f" instead of {format_count(first.unshared_blocks)} by theory"
    if apart.requests == first.requests:
        return f" instead of {format_count(apart.measured_blocks)}"
    return (
        f" instead of {format_count(first.unshared_blocks)} by theory ({apart.variant}'s pool took "
        f"{format_count(apart.requests)} at once, in {format_count(apart.measured_blocks)} blocks)"
    )


def _prefix_grid(found: Sequence[prefix.Sharing]) -> Grid:
    return Grid(
        "Blocks in use at the peak, and prompt tokens found stored",
        (
            "variant",
            "workload",
            "repeat",
            "shared blocks",
            "blocks predicted",
            "blocks measured",
            "hit tokens predicted",
            "hit tokens measured",
            "exact",
        ),
        tuple(
            (
                each.variant,
                each.workload_label.split(":")[0],
                format_count(each.repeat + 1),
                format_count(each.shared_blocks),
                format_count(each.predicted_blocks),
                format_count(each.measured_blocks),
                format_count(each.predicted_hit_tokens),
                format_count(each.measured_hit_tokens),
                {True: "yes", False: "no", None: DASH}[each.exact],
            )
            for each in found
        ),
        numeric=frozenset(range(2, 8)),
    )


def _prefix_chart(analysis: Analysis, found: Sequence[prefix.Sharing]) -> Chart:
    first: dict[tuple[str, str], prefix.Sharing] = {}
    for each in found:
        first.setdefault((each.variant, each.workload_label), each)
    given = [
        Pair(
            f"{each.variant}: {each.workload_label.split(':')[0]}",
            places(analysis)[each.variant],
            each.predicted_blocks,
            each.measured_blocks,
        )
        for each in first.values()
    ]
    return pair_chart(
        "strategy-prefix",
        "KV blocks in use at the peak, with and without sharing",
        "Dashed outlines are the prediction, bars the engine's gauge at its peak, in the first "
        "repeat.",
        given,
        axis="KV blocks in use at the peak",
        digits=0,
    )


# ── conversations that return ───────────────────────────────────────────────────────────────


def offload_section(
    _bench: BenchRecord, records: Sequence[TrialRecord], analysis: Analysis
) -> Section | None:
    """TTFT and found tokens turn by turn, and what a host link must carry."""
    found = [each for each in offload.returning_turns(records) if each.turns]
    if not found:
        return None
    rate, prefill = _bytes_per_token(analysis), found[0].prefill_tokens_per_s
    return Section(
        anchor="offload",
        title="Conversations that return",
        lead=_offload_lead(analysis, found),
        claims=("C14",),
        theory=_offload_theory(found, rate, prefill),
        measured=(
            (
                "TTFT by turn, and the share of each prompt that the server says it found stored. "
                "Turns are told apart by the length of their prompts."
            ),
            *_link_texts(found, rate),
        ),
        grids=(_offload_grid(found),),
        charts=(_offload_chart(analysis, found),),
        not_covered=(
            "Fetching that overlaps with computing; disks and other tiers. What the model answered "
            "is not fed back: a turn's prompt is a longer piece of the same planned tokens."
        ),
        opens=True,
    )


def _link_texts(found: Sequence[offload.ReturningTurns], rate: float | None) -> Iterator[str]:
    """What the host link carried, by each variant that fetched over it."""
    for each in found:
        link = offload.effective_link(each, rate) if each.offloads and rate is not None else None
        if link is None or rate is None or each.prefill_tokens_per_s is None:
            continue
        needed = break_even_link(rate, each.prefill_tokens_per_s)
        verdict = "so fetching beats computing" if link > needed else "so computing is faster"
        yield (
            f"What {each.variant}'s last turns waited beyond computing the rest of their prompts "
            f"means a host link of {format_bandwidth(link)}; fetching pays above "
            f"{format_bandwidth(needed)}, {verdict}."
        )


def _bytes_per_token(analysis: Analysis) -> float | None:
    figures = [kv.predicted for kv in analysis.kv if kv.predicted is not None]
    return figures[0].kv_bytes_per_token if figures else None


def _offload_lead(analysis: Analysis, found: Sequence[offload.ReturningTurns]) -> str:
    on = next((each for each in found if each.offloads), None)
    off = next((each for each in found if not each.offloads), None)
    reasons = [
        f"{name} was skipped" for name in analysis.skipped if off is None or name != off.variant
    ]
    if on is None or off is None:
        own = on or off or found[0]
        last = own.turns[-1]
        return (
            f"{'; '.join(reasons) or 'Offloading was not measured'}. With {own.variant} a "
            f"conversation's last turn ({format_count(last.prompt_tokens)} tokens) waits "
            f"{format_duration(last.ttft_p50_s)} for its first token, with "
            f"{format_percent(last.cached_fraction)} of its prompt still in the pool."
        )
    return (
        f"When conversations return for their last turn, {on.variant} answers after "
        f"{format_duration(on.turns[-1].ttft_p50_s)} (p50), {off.variant} after "
        f"{format_duration(off.turns[-1].ttft_p50_s)}; it fetched "
        f"{format_count(on.fetched_tokens)} tokens from host memory."
    )


def _offload_theory(
    found: Sequence[offload.ReturningTurns], rate: float | None, prefill: float | None
) -> str:
    text = (
        "A prefix that was pushed out of the pool is either computed again, at the speed of "
        "prefill, or fetched over the host link: fetching wins if the link carries more bytes per "
        "second than prefill would make, bytes per token × prefill tokens/s."
    )
    if rate is None or prefill is None:
        return text
    needed = break_even_link(rate, prefill)
    longest = found[0].turns[-1].prompt_tokens
    return (
        f"{text} Here: {format_count(rate)} bytes × {format_rate(prefill, 'tokens/s', 0)} (the "
        f"first turns) = {format_bandwidth(needed)}. A prompt of {format_count(longest)} tokens is "
        f"{format_bytes(longest * rate)} to fetch, or "
        f"{format_duration(recompute_s(longest, prefill))} of computing."
    )


def _offload_grid(found: Sequence[offload.ReturningTurns]) -> Grid:
    return Grid(
        "Turn by turn",
        ("variant", "turn", "prompt tokens", "requests", "TTFT p50", "found stored"),
        tuple(
            (
                each.variant,
                format_count(turn.number),
                format_count(turn.prompt_tokens),
                format_count(turn.requests),
                format_duration(turn.ttft_p50_s),
                format_percent(turn.cached_fraction),
            )
            for each in found
            for turn in each.turns
        ),
        numeric=frozenset(range(1, 6)),
    )


def _offload_chart(analysis: Analysis, found: Sequence[offload.ReturningTurns]) -> Chart:
    curves = []
    for each in found:
        known = [(t.prompt_tokens, t.ttft_p50_s) for t in each.turns if t.ttft_p50_s is not None]
        curves.append(
            Curve(
                each.variant,
                places(analysis)[each.variant],
                tuple(float(tokens) for tokens, _ in known),
                tuple(wait for _, wait in known),
                joined=True,
            )
        )
    panel = Panel(
        "TTFT p50 by turn",
        "tokens of the turn's prompt",
        "TTFT p50 (lower is better)",
        tuple(curves),
        tick_duration,
    )
    return Chart(
        "strategy-turns",
        "How long conversations wait when they return",
        "One mark per turn; a turn whose earlier tokens are found waits only for the new ones.",
        "; ".join(
            f"{each.variant} turn {turn.number}: {format_duration(turn.ttft_p50_s)}"
            for each in found
            for turn in each.turns
        ),
        lambda: panels([[panel]]),
    )


# ── the capacity cliff ──────────────────────────────────────────────────────────────────────


def cliff_section(
    _bench: BenchRecord, _records: Sequence[TrialRecord], analysis: Analysis
) -> Section | None:
    """Concurrency across the predicted capacity."""
    found = cliff.cliffs(analysis)
    if not found:
        return None
    return Section(
        anchor="capacity-cliff",
        title="The capacity cliff",
        lead=_cliff_lead(found),
        claims=("C3", "C4", "C5"),
        theory=(
            "A request takes whole blocks for its prompt and its output, and one block of the pool "
            "is never used: floor((blocks − 1) / blocks per request) requests fit. One more, and "
            "it waits for another to end, or has another thrown out and computed again."
        ),
        measured=(
            (
                "A concurrency is beyond the cliff if requests were preempted, or if never as many "
                "ran at once as were sent. The waiting gauge alone is no sign: requests also wait "
                "for their turn in a step."
            ),
        ),
        grids=tuple(_cliff_grid(each) for each in found),
        charts=(_cliff_chart(analysis, found),),
        not_covered="Loads whose requests differ in length; arrivals in an open loop.",
        opens=len(analysis.kv) == 1,
    )


def _cliff_lead(found: Sequence[cliff.Cliff]) -> str:
    right = sum(each.within_one_step is True for each in found)
    fits = listed([format_count(each.fits) for each in found])
    over = listed([format_count(each.first_over) for each in found])
    sizes = listed([format_count(each.context_tokens) for each in found])
    return (
        f"Of requests with {sizes} prompt tokens, {fits} fit the pool by theory; it was seen too "
        f"small from {over} at once on. Theory names the right step for {right} of {len(found)}."
    )


def _cliff_name(each: cliff.Cliff) -> str:
    size = f"{format_count(each.context_tokens)} + {format_count(each.output_tokens)} tokens"
    return f"{each.variant}, {size}"


def _cliff_grid(each: cliff.Cliff) -> Grid:
    return Grid(
        f"{_cliff_name(each)}: {each.blocks_per_request} blocks each of "
        f"{format_count(each.usable_blocks)}, so {each.fits} fit",
        (
            "concurrency",
            "pool",
            "running, peak",
            "waiting, peak",
            "preemptions",
            "output throughput",
            "TTFT p90",
        ),
        tuple(
            (
                format_count(level.concurrency),
                {True: "too small", False: "large enough", None: DASH}[level.over],
                format_count(level.running_peak),
                format_count(level.waiting_peak),
                format_count(level.preemptions),
                format_rate(level.output_throughput, "tok/s"),
                format_duration(level.ttft_p90_s),
            )
            for level in each.levels
        ),
        numeric=frozenset(range(2, 7)),
    )


def _cliff_chart(analysis: Analysis, found: Sequence[cliff.Cliff]) -> Chart:
    best = [_cliff_ceiling(analysis, each) for each in found]
    rows = [
        _cliff_panels(places(analysis)[each.variant], each, limit)
        for each, limit in zip(found, best, strict=True)
    ]
    return Chart(
        "strategy-cliff",
        _cliff_title(found),
        "Dashed upright lines: the last concurrency that fits by theory, and the first at which "
        "the pool was seen too small. Left higher is better, right lower. "
        + (
            "Dash-dotted: the roofline, the device's best."
            if any(limit.output_throughput for limit in best)
            else "No roofline: this device's peaks are not known."
        ),
        "; ".join(
            f"{_cliff_name(each)}: {each.fits} fit by theory, too small from "
            f"{format_count(each.first_over)}"
            for each in found
        ),
        lambda: panels(rows),
    )


def _cliff_title(found: Sequence[cliff.Cliff]) -> str:
    if all(each.within_one_step for each in found):
        return "The pool is too small just where theory says; beyond, requests wait"
    return "Where the pool is full by theory, and where it was seen too small"


def _cliff_ceiling(analysis: Analysis, each: cliff.Cliff) -> Ceiling:
    """The roofline of the loads that the sweep is made of."""
    levels = [level.concurrency for level in each.levels]
    own = [
        comparison
        for comparison in analysis.comparisons
        if comparison.workload.get("concurrency") in levels
        and comparison.workload.get("context_tokens") == each.context_tokens
        and comparison.workload.get("output_tokens") == each.output_tokens
        and str(comparison.workload.get("name") or "") == each.name
    ]
    return ceiling(sorted(own, key=lambda c: int(c.workload["concurrency"])))


def _cliff_panels(place: int, each: cliff.Cliff, best: Ceiling) -> tuple[Panel, Panel]:
    upright = [(float(each.fits), "fits by theory")]
    if each.first_over is not None:
        upright.append((float(each.first_over), "seen too small"))
    return (
        _cliff_panel(
            each,
            place,
            [level.output_throughput for level in each.levels],
            "output tokens/s",
            format_count,
            tuple(upright),
            _bound(best, best.output_throughput, lambda v: f"roofline, to {format_count(v)}"),
        ),
        _cliff_panel(
            each,
            place,
            [level.ttft_p90_s for level in each.levels],
            "TTFT p90",
            tick_duration,
            tuple(upright),
            _bound(best, best.ttft_s, lambda v: f"roofline {format_duration(v)}"),
        ),
    )


def _cliff_panel(
    each: cliff.Cliff,
    place: int,
    values: Sequence[float | None],
    name: str,
    render: Callable[[float], str],
    upright: tuple[tuple[float, str], ...],
    bound: CeilingLine | None,
) -> Panel:
    known = [
        (lv.concurrency, v) for lv, v in zip(each.levels, values, strict=True) if v is not None
    ]
    curve = Curve(
        "",
        place,
        tuple(float(level) for level, _ in known),
        tuple(value for _, value in known),
        joined=True,
    )
    size = f"{format_count(each.context_tokens)} + {format_count(each.output_tokens)} tokens"
    return Panel(size, "concurrency", name, (curve,), render, upright, bound)


def _bound(
    best: Ceiling, values: tuple[float, ...], say: Callable[[float], str]
) -> CeilingLine | None:
    if not values:
        return None
    return CeilingLine(tuple(float(n) for n in best.concurrency), values, say(values[-1]))
