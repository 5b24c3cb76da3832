"""The section about evicting tokens: what a request holds, and what that costs in perplexity.

Not covered: retrieval and answers, which the quality section shows; eviction by score.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.eviction import Evicting, evictions
from harness.analysis.results import Analysis
from harness.record import BenchRecord, TrialRecord
from harness.report.charts import Chart
from harness.report.parts import Grid, Section
from harness.report.strategy_charts import Curve, Pair, Panel, pairs, panels, place_of
from harness.report.strategy_memory import throughput_text
from harness.specs.eviction import EvictionRule
from harness.units import DASH, format_bytes, format_count, format_ratio


def section(
    _bench: BenchRecord, records: Sequence[TrialRecord], analysis: Analysis
) -> Section | None:
    """Blocks per request against perplexity, for every rule and for full attention."""
    found = evictions(analysis.trials, records, analysis.quality)
    if not found:
        return None
    priced = [each for each in found if each.perplexity_ratio is not None]
    charts = [_blocks_chart(analysis, found)]
    if len(priced) > 1:
        charts.insert(0, _trade_off(analysis, priced))
    return Section(
        anchor="token-eviction",
        title="Evicting tokens: memory against quality",
        claims=("C12",),
        theory=(
            "The first S tokens stay, and the W most recent; blocks between them go back to the "
            "pool before each step. A request holds at its worst moment ceil(S / block) + "
            "ceil((W − 1 + max_num_batched_tokens) / block) + 1 blocks, however long it is. "
            "Attention over what is kept is exact; what is gone is gone."
        ),
        lead=_lead(found),
        grids=(_grid(analysis, found),),
        charts=tuple(charts),
        measured=(
            (
                "The largest number of blocks per running request over the samples of the load, on "
                "vLLM's own scheduler and kernels through kvbench's plugin; each log proves "
                "that its rule was in force."
            ),
            "Perplexity of the quality prompts' text, the same tokens for every variant.",
        ),
        not_covered=(
            "Keys keep their original positions, so sinks drift away as in ordinary attention. "
            "Eviction by score is not among the variants. Prompts longer than the window depend "
            "on how the scheduler cuts them into steps. See docs/eviction.md."
        ),
    )


def _lead(found: Sequence[Evicting]) -> str:
    full = next((each for each in found if each.rule is None), None)
    told = "; ".join(
        f"{each.variant} holds at most {format_count(each.measured_blocks, 1)} blocks "
        f"(predicted {each.predicted_blocks}){_price(each)}"
        for each in found
        if each.rule is not None
    )
    against = (
        f"; full attention {format_count(full.measured_blocks, 1)} blocks"
        if full is not None
        else ""
    )
    return (
        f"Per running request, of {format_count(found[0].length_tokens)} tokens: {told}{against}."
    )


def _price(each: Evicting) -> str:
    if each.perplexity_ratio is None:
        return ""
    return f" at {format_ratio(each.perplexity_ratio)} the perplexity of full attention"


def _grid(analysis: Analysis, found: Sequence[Evicting]) -> Grid:
    pools = {kv.variant: kv for kv in analysis.kv}
    return Grid(
        f"A request of {format_count(found[0].length_tokens)} tokens",
        (
            "variant",
            "sinks",
            "window",
            "predicted per request",
            "measured per request",
            "capacity",
            "output throughput",
            "perplexity of texts",
        ),
        tuple(
            (
                each.variant,
                format_count(each.rule.sinks) if isinstance(each.rule, EvictionRule) else DASH,
                format_count(each.rule.window) if isinstance(each.rule, EvictionRule) else DASH,
                (
                    f"{each.predicted_blocks} blocks, "
                    f"{format_bytes(each.predicted_blocks * each.block_bytes)}"
                ),
                f"{format_count(each.measured_blocks, 1)} blocks",
                format_ratio(pools[each.variant].capacity_ratio),
                throughput_text(analysis, each.variant),
                format_count(each.perplexity, 2),
            )
            for each in found
        ),
        numeric=frozenset(range(1, 8)),
    )


def _trade_off(analysis: Analysis, priced: Sequence[Evicting]) -> Chart:
    """One mark per variant: blocks that it holds at most, perplexity over full attention's."""
    curves = tuple(
        Curve(
            each.variant,
            place_of(analysis, each.variant),
            (each.measured_blocks if each.measured_blocks is not None else each.predicted_blocks,),
            (each.perplexity_ratio or 0.0,),
        )
        for each in priced
    )
    panel = Panel(
        "Nearer to the lower left is better",
        "KV blocks per request",
        "perplexity over full attention's",
        curves,
        lambda value: f"{value:g}×",
    )
    return Chart(
        "strategy-eviction-trade-off",
        "Memory against perplexity",
        "One mark per variant: the most blocks that one running request held, and the perplexity "
        "of the same texts over full attention's.",
        "; ".join(
            f"{each.variant}: {format_count(curve.x[0], 1)} blocks, "
            f"{format_ratio(each.perplexity_ratio)} the perplexity"
            for each, curve in zip(priced, curves, strict=True)
        ),
        lambda: panels([[panel]]),
    )


def _blocks_chart(analysis: Analysis, found: Sequence[Evicting]) -> Chart:
    given = [
        Pair(
            each.variant,
            place_of(analysis, each.variant),
            each.predicted_blocks,
            each.measured_blocks,
        )
        for each in found
    ]
    return Chart(
        "strategy-eviction",
        "Blocks that one request holds, with and without eviction",
        "Dashed outlines are the most that a request may hold by theory, bars the most that was "
        "seen per running request.",
        "; ".join(
            f"{pair.label}: {format_count(pair.predicted)} predicted, "
            f"{format_count(pair.measured, 1)} measured"
            for pair in given
        ),
        lambda: pairs("KV blocks per request", "blocks (lower is better)", given),
    )
