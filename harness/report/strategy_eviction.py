"""The section about evicting tokens: what a request holds, and what that costs in perplexity.

Servers' variants and policies of kvpress stand in tables of their own, and in the trade-off chart
as marks of unlike kind: the second are transformers', which is no server and is timed nowhere.
Not covered: answers and retrieval in detail, which the quality section shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis.eviction import EvictionResult, PolicyResult, eviction_results, policy_results
from harness.analysis.quality_results import Retrieval
from harness.analysis.results import Analysis, TrialAnalysis
from harness.analysis.shared_reasons import by_reason
from harness.record import HOW_ENDED, BenchRecord, TrialRecord
from harness.report.charts import Chart, trade_off
from harness.report.places import places
from harness.report.section_parts import Grid, Section
from harness.report.strategy_rows import blocks_held_chart, blocks_text, throughput_text
from harness.specs.eviction import SnapKvRule
from harness.units import (
    DASH,
    format_bytes,
    format_count,
    format_rate,
    format_ratio,
    format_significant,
    listed,
)

_RULES = (
    "Sinks and window: the first S tokens stay, and the W most recent; blocks between them go "
    "back to the pool before each step. A request holds at its worst moment ceil(S / block) + "
    "ceil((W − 1 + max_num_batched_tokens) / block) + 1 blocks, however long it is. "
)
_BY_SCORE = (
    "SnapKV: a prompt is computed in one step with full attention and then cut, per layer and KV "
    "head, to the tokens that its last ones attend to most. So the pool must still hold whole "
    "prompts, and only what a request holds while it decodes shrinks. "
)
_EXACT = "Attention over what is kept is exact; what is gone is gone."
_ONE_STEP = (
    "SnapKV computes a prompt in one step, the other variants in several: part of the difference "
    "in speed is that. "
)
_KVPRESS = (
    "kvpress: a policy at ratio r leaves floor(tokens × (1 − r)) of a prefill, and as many times "
    "the model's bytes per token. "
)


def section(
    _bench: BenchRecord, records: Sequence[TrialRecord], analysis: Analysis
) -> Section | None:
    """What every rule holds and costs, beside full attention and the policies of kvpress."""
    found = eviction_results(analysis.trials, records, analysis.quality)
    if not found:
        return None
    policies = policy_results(records, analysis.quality)
    scored = any(isinstance(each.rule, SnapKvRule) for each in found)
    theory = _RULES + (_BY_SCORE if scored else "") + (_KVPRESS if policies else "") + _EXACT
    return Section(
        anchor="token-eviction",
        title="Evicting tokens: memory against quality",
        claims=("C12",),
        theory=theory,
        lead=_lead(found),
        grids=tuple(_grids(analysis, found, policies)),
        charts=tuple(_charts(analysis, found, policies)),
        measured=tuple(_measured(analysis, found, policies)),
        not_covered=(
            "Keys keep their original positions, so sinks drift away as in ordinary attention. "
            "Prompts longer than the window depend on how the scheduler cuts them into steps. "
            + (_ONE_STEP if scored else "")
            + "kvpress is not asked for answers, and its speed is not told. See docs/eviction.md."
        ),
    )


# ── sentences ───────────────────────────────────────────────────────────────────────────────


def _lead(found: Sequence[EvictionResult]) -> str:
    full = next((each for each in found if each.rule is None), None)
    told = "; ".join(
        f"{each.variant} holds at most {format_count(each.measured_blocks, 1)} blocks "
        f"(bound {each.predicted_blocks}){_later(each)}{_price(each)}"
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


def _later(each: EvictionResult) -> str:
    """Where a request holds much less once it decodes, that figure too."""
    if not isinstance(each.rule, SnapKvRule):
        return ""
    return f", {format_count(each.measured_decoding, 1)} while decoding"


def _price(each: EvictionResult) -> str:
    if each.perplexity_ratio is None:
        return ""
    return f" at {format_ratio(each.perplexity_ratio)} full attention's perplexity of the tails"


def _measured(
    analysis: Analysis, found: Sequence[EvictionResult], policies: Sequence[PolicyResult]
) -> Iterator[str]:
    yield (
        "The largest number of blocks per running request over the samples of the load, and over "
        "those at which all running requests were decoding, on vLLM's own scheduler and kernels "
        "through kvbench's plugin; each log proves that its rule was in force."
    )
    if any(each.perplexity is not None for each in found):
        yield (
            "Perplexity of the last quarter of each quality prompt's text, the same tokens at the "
            "same places for every variant, all of them behind what the rule had left by then."
        )
    if any(isinstance(each.rule, SnapKvRule) and each.perplexity is not None for each in found):
        yield (
            "SnapKV's perplexity is that of decoding: the first three quarters are the prompt, the "
            "rest is decoded token by token, since a prompt's own probabilities precede the cut."
        )
    yield from _of_kvpress(found, policies)
    yield from _left_out(analysis, found, policies)


def _of_kvpress(found: Sequence[EvictionResult], policies: Sequence[PolicyResult]) -> Iterator[str]:
    done = [each for each in policies if each.status == "sealed"]
    if not done:
        return
    yield (
        f"Policies of kvpress are another engine's ({done[0].engine_version or DASH}): bytes of "
        "the cache tensors' storage once a prefill is compressed, and the same places scored "
        "behind it. One request at a time, and never on the servers' axis of speed."
    )
    mine = next((e for e in found if isinstance(e.rule, SnapKvRule) and e.perplexity), None)
    theirs = [each for each in done if each.press == "snapkv" and each.perplexity is not None]
    if mine is not None and isinstance(mine.rule, SnapKvRule) and theirs:
        budget = mine.rule.budget
        near = min(theirs, key=lambda each: abs(each.predicted_tokens - budget))
        yield (
            f"SnapKV twice: vLLM cut to {format_count(budget)} tokens gives a perplexity of "
            f"{format_count(mine.perplexity, 2)}, kvpress at {format_count(near.kept_tokens)} "
            f"tokens (ratio {format_significant(near.ratio)}) {format_count(near.perplexity, 2)}."
        )


def _left_out(
    analysis: Analysis, found: Sequence[EvictionResult], policies: Sequence[PolicyResult]
) -> Iterator[str]:
    """What was asked for and could not be measured, one sentence per reason."""
    failed = {e.variant: f"failed: {e.reason or DASH}" for e in policies if e.status == "failed"}
    for reason in by_reason({**analysis.skipped, **failed}):
        likewise = f", likewise {listed(reason.likewise)}" if reason.likewise else ""
        yield f"Not measured: {listed(reason.head)} ({reason.text}){likewise}."
    for cut in found:
        if isinstance(cut.rule, SnapKvRule) and cut.perplexity is None:
            yield (
                f"The perplexity of {cut.variant} is withheld: a prompt's own probabilities "
                "precede its cut and would show full attention's."
            )


# ── tables ──────────────────────────────────────────────────────────────────────────────────


def _grids(
    analysis: Analysis, found: Sequence[EvictionResult], policies: Sequence[PolicyResult]
) -> Iterator[Grid]:
    trials = {trial.variant: trial for trial in reversed(analysis.trials)}
    yield _memory_grid(found)
    yield _pool_grid(analysis, found, trials)
    yield _price_grid(analysis, found, trials)
    if policies:
        yield _kvpress_grid(policies)


def _memory_grid(found: Sequence[EvictionResult]) -> Grid:
    return Grid(
        f"On vLLM: what a request of {format_count(found[0].length_tokens)} tokens holds",
        (
            "variant",
            "rule",
            "most, predicted",
            "most, measured",
            "decoding, predicted",
            "decoding, measured",
        ),
        tuple(
            (
                each.variant,
                "everything stays" if each.rule is None else str(each.rule),
                blocks_text(each.predicted_blocks, each.block_bytes),
                f"{format_count(each.measured_blocks, 1)} blocks",
                blocks_text(each.predicted_decoding, each.block_bytes),
                f"{format_count(each.measured_decoding, 1)} blocks",
            )
            for each in found
        ),
        numeric=frozenset(range(2, 6)),
    )


def _pool_grid(
    analysis: Analysis, found: Sequence[EvictionResult], trials: dict[str, TrialAnalysis]
) -> Grid:
    return Grid(
        "On vLLM: how many requests the pool admits",
        (
            "variant",
            "advertised, predicted",
            "advertised, granted",
            "capacity",
            "fit at worst, predicted",
            "running, peak",
        ),
        tuple(_pool_row(analysis, each.variant, trials[each.variant]) for each in found),
        numeric=frozenset(range(1, 6)),
    )


def _pool_row(analysis: Analysis, variant: str, trial: TrialAnalysis) -> tuple[str, ...]:
    pool = next(kv for kv in analysis.kv if kv.variant == variant)
    theory, summary = trial.theory, trial.summary
    return (
        variant,
        format_ratio(pool.predicted.max_concurrency if pool.predicted is not None else None),
        format_ratio(pool.granted.max_concurrency),
        format_ratio(pool.capacity_ratio),
        format_count(theory.concurrency_at_workload if theory is not None else None, 1),
        format_count(summary.requests_running_peak if summary is not None else None),
    )


def _price_grid(
    analysis: Analysis, found: Sequence[EvictionResult], trials: dict[str, TrialAnalysis]
) -> Grid:
    return Grid(
        "On vLLM: what it buys in this pool, and what it costs",
        (
            "variant",
            "output throughput",
            "at most, by the roofline",
            "perplexity of tails",
            "over full attention",
            "needles found",
            "answers",
        ),
        tuple(
            (
                each.variant,
                throughput_text(analysis, each.variant),
                _ceiling(trials[each.variant]),
                format_count(each.perplexity, 2),
                format_ratio(each.perplexity_ratio),
                _needles(_retrieval(analysis, each.variant)),
                _standing(analysis, each.variant),
            )
            for each in found
        ),
        numeric=frozenset(range(1, 6)),
    )


def _ceiling(trial: TrialAnalysis) -> str:
    best = trial.ceilings.output_throughput if trial.ceilings is not None else None
    return format_rate(best, "tok/s")


def _retrieval(analysis: Analysis, variant: str) -> Retrieval | None:
    quality = analysis.quality
    if quality is None:
        return None
    if variant == analysis.baseline:
        return quality.baseline_retrieval
    own = quality.of(variant)
    return own.retrieval if own is not None else None


def _needles(found: Retrieval | None) -> str:
    if found is None or not found.needles_asked:
        return DASH
    return f"{found.needles_right} of {found.needles_asked}"


def _standing(analysis: Analysis, variant: str) -> str:
    if variant == analysis.baseline:
        return "the yardstick"
    own = analysis.quality.of(variant) if analysis.quality is not None else None
    if own is None:
        return DASH
    return "fails the gate: its gains don't count" if own.standing == "broken" else own.standing


def _kvpress_grid(policies: Sequence[PolicyResult]) -> Grid:
    return Grid(
        f"On transformers, by kvpress: what is left of a prefill of "
        f"{format_count(policies[0].prefill_tokens)} tokens",
        (
            "variant",
            "ratio",
            "tokens, predicted",
            "tokens, kept",
            "KV, predicted",
            "KV, measured",
            "perplexity of tails",
            "over transformers' own",
            "state",
        ),
        tuple(
            (
                each.variant,
                format_significant(each.ratio),
                format_count(each.predicted_tokens),
                format_count(each.kept_tokens),
                format_bytes(each.predicted_bytes),
                format_bytes(each.cache_bytes),
                format_count(each.perplexity, 2),
                format_ratio(each.perplexity_ratio),
                HOW_ENDED[each.status],
            )
            for each in policies
        ),
        numeric=frozenset(range(1, 8)),
    )


# ── charts ──────────────────────────────────────────────────────────────────────────────────


def _charts(
    analysis: Analysis, found: Sequence[EvictionResult], policies: Sequence[PolicyResult]
) -> Iterator[Chart]:
    marks = _marks(analysis, found)
    if marks:
        yield _trade_off(found, marks, policies)
    yield blocks_held_chart(
        analysis,
        found,
        name="strategy-eviction",
        title="Blocks that one request holds, with and without eviction",
    )


def _size(each: EvictionResult) -> float | None:
    """Bytes while decoding, measured; those that are predicted where no sample shows it."""
    blocks = each.predicted_decoding if each.measured_decoding is None else each.measured_decoding
    return None if blocks is None else blocks * each.block_bytes


def _marks(analysis: Analysis, found: Sequence[EvictionResult]) -> list[trade_off.Mark]:
    return [
        trade_off.Mark(each.variant, places(analysis)[each.variant], size, each.perplexity)
        for each in found
        if each.rule is not None
        and each.perplexity is not None
        and (size := _size(each)) is not None
    ]


def _trails(policies: Sequence[PolicyResult]) -> list[trade_off.Trail]:
    """One per policy, its ratios in order; a policy that compresses nothing is a level."""
    points: dict[str, list[tuple[float, float]]] = {}
    for each in sorted(policies, key=lambda one: one.ratio):
        if each.press != "none" and each.cache_bytes is not None and each.perplexity is not None:
            points.setdefault(each.press, []).append((each.cache_bytes, each.perplexity))
    return [
        trade_off.Trail(f"kvpress {press.replace('_', ' ')} (transformers)", tuple(own))
        for press, own in points.items()
    ]


def _levels(
    found: Sequence[EvictionResult], policies: Sequence[PolicyResult]
) -> list[trade_off.Level]:
    full = [
        trade_off.Level("full attention, vLLM", each.perplexity, _size(each))
        for each in found
        if each.rule is None and each.perplexity is not None
    ]
    bare = [
        trade_off.Level("full attention, transformers", each.perplexity)
        for each in policies
        if each.press == "none" and each.perplexity is not None
    ]
    return [*full[:1], *bare[:1]]


def _trade_off(
    found: Sequence[EvictionResult],
    marks: Sequence[trade_off.Mark],
    policies: Sequence[PolicyResult],
) -> Chart:
    trails, levels = _trails(policies), _levels(found, policies)
    hollow = (
        " Hollow marks are kvpress on transformers, another engine, one line per policy: bytes of "
        "its cache's tensors behind a prefill of "
        f"{format_count(policies[0].prefill_tokens)} tokens."
        if trails
        else ""
    )
    told = [
        f"{mark.label}: {format_bytes(mark.size_bytes)}, perplexity "
        f"{format_count(mark.perplexity, 2)}"
        for mark in marks
    ]
    told += [
        f"{trail.label}: {format_bytes(size)}, perplexity {format_count(perplexity, 2)}"
        for trail in trails
        for size, perplexity in trail.points
    ]
    told += [f"{level.label}: perplexity {format_count(level.perplexity, 2)}" for level in levels]
    return Chart(
        "strategy-eviction-trade-off",
        "Memory against perplexity",
        "Filled marks are vLLM: what one running request of "
        f"{format_count(found[0].length_tokens)} tokens was seen to hold while it decoded. Lines "
        "are full attention. The upright axis does not begin at zero." + hollow,
        "; ".join(told),
        lambda: trade_off.draw(marks, trails, levels),
    )
