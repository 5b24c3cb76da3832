"""Which KV-cache strategies let so many requests of one length run on one kind of GPU, in theory.

Method: each strategy is a change of the server's settings; what fits is counted as the engine
plans it (``capacity``) in the bytes that the card leaves (``budget``); decoding is bounded by the
roofline at the requests that fit, at most those asked for, all at their full length, and TTFT by
that of a prompt alone. Recommended is the strategy of
least effort under which all requests fit. Every figure is modelled; none was measured.

Not covered: answer quality (told as the chapter claims it, C15), queueing, and offloading's speed,
which depends on the host's link: measure them (``kvbench bench``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.errors import InputError
from harness.specs.eviction import EvictionRule
from harness.specs.gpu import GpuSpec
from harness.specs.model import ModelSpec
from harness.theory.budget import DEFAULT_UTILIZATION, Budget, plan_budget
from harness.theory.capacity import KvCapacity, predict_capacity
from harness.theory.roofline import ceilings_of, decode_work, prefill_work
from harness.theory.settings import EngineSettings
from harness.units import Bytes, Seconds, Tokens, format_bytes, format_count

Effort = Literal["none", "flags", "model change", "plugin"]

#: Anchor tokens of the eviction that is modelled; a block or two is what the chapter suggests.
_SINKS: Tokens = 16
#: The chapter's saving by eviction is 2–4×; the stronger end is modelled.
_EVICTED_TO = 4
_MISTRAL_WINDOW: Tokens = 4096


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be served: requests of so many tokens (output included), so many at once."""

    context_tokens: Tokens
    concurrency: int
    output_tokens: Tokens = 256
    shared_prefix_tokens: Tokens = 0


@dataclass(frozen=True, slots=True)
class Option:
    """One strategy for a case; ratios are to plain paging at the model's own dtype.

    ``concurrency`` is how many such requests fit at once, ``throughput_tokens_per_s`` an upper
    bound on decoding with those that fit, ``ttft_s`` a lower bound without queueing. None where
    ``reason`` says why nothing can be computed.
    """

    strategy: str
    effort: Effort
    change: str
    quality: str
    kv_bytes_per_request: float | None = None
    concurrency: float | None = None
    fits: bool | None = None
    throughput_tokens_per_s: float | None = None
    ttft_s: Seconds | None = None
    memory_ratio: float | None = None
    capacity_ratio: float | None = None
    throughput_ratio: float | None = None
    ttft_ratio: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """All options of a case; ``recommended`` is None where none of them fits."""

    case: Case
    gpu: str
    budget: Budget
    options: tuple[Option, ...]
    recommended: str | None
    why: str


def advise(
    model: ModelSpec,
    settings: EngineSettings,
    gpu: GpuSpec,
    case: Case,
    *,
    utilization: float = DEFAULT_UTILIZATION,
) -> Advice:
    """Weigh the strategies for one case.

    Raises:
        InputError: a case that the model can't serve, or settings that it can't be split by.
        UnsupportedModel: a layout that is not modelled.
    """
    _check(model, case)
    settings = replace(settings, max_model_len=settings.max_model_len or case.context_tokens)
    budget = plan_budget(model, settings, gpu.memory_bytes, utilization=utilization)
    pool = max(budget.kv_bytes, 0)
    plain = _option(_PLAIN, model, settings, gpu, case, pool)
    others = [_option(s, model, settings, gpu, case, pool) for s in _strategies(case)]
    options = tuple(_against(option, plain) for option in (plain, *others))
    recommended, why = _recommend(options, budget, case)
    return Advice(case, gpu.name, budget, options, recommended, why)


def _check(model: ModelSpec, case: Case) -> None:
    if not 0 < case.output_tokens < case.context_tokens:
        raise InputError("the output must leave room for a prompt within the context")
    if case.shared_prefix_tokens >= case.context_tokens - case.output_tokens:
        raise InputError("a shared prefix must leave each prompt a part of its own")
    if case.concurrency < 1:
        raise InputError("a case needs at least one request")
    if case.context_tokens > model.max_model_len:
        raise InputError(
            f"{model.name} is made for {model.max_model_len:,} tokens, not {case.context_tokens:,}",
            where="--context",
        )


# ── the strategies ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Strategy:
    """How a strategy changes the settings; ``how`` names what is counted differently."""

    name: str
    effort: Effort
    change: str
    quality: str
    kv_cache_dtype: str | None = None
    eviction: EvictionRule | None = None
    how: Literal["paged", "reserved", "shared", "offloaded"] = "paged"


_PLAIN = _Strategy("paging, model's own dtype", "none", "vLLM's default", "unchanged")


def _strategies(case: Case) -> tuple[_Strategy, ...]:
    kept = max(case.context_tokens // _EVICTED_TO, 1)
    rule = EvictionRule(_SINKS, kept)
    shared = (
        _Strategy(
            f"sharing a prefix of {case.shared_prefix_tokens:,} tokens",
            "flags",
            "enable_prefix_caching (vLLM's default)",
            "unchanged",
            how="shared",
        ),
    )
    return (
        *(shared if case.shared_prefix_tokens else ()),
        _Strategy(
            "FP8 KV cache",
            "flags",
            "--kv-cache-dtype fp8",
            "minimal by the chapter (C11); can break, measure it",
            kv_cache_dtype="fp8",
        ),
        _Strategy(
            "INT4 KV cache, scales per token and head",
            "flags",
            "--kv-cache-dtype int4_per_token_head",
            "more than FP8; measure it",
            kv_cache_dtype="int4_per_token_head",
        ),
        _Strategy(
            f"sliding window of {_MISTRAL_WINDOW:,}",
            "model change",
            "a model that was trained with one",
            "moderate on long range (C13)",
            eviction=EvictionRule(0, _MISTRAL_WINDOW),
        ),
        _Strategy(
            f"token eviction, {_SINKS} sinks and the last {kept:,}",
            "plugin",
            f"KVBENCH_EVICTION={rule}",
            "by policy; what is evicted is lost (C12)",
            eviction=rule,
        ),
        _Strategy(
            "CPU offloading",
            "flags",
            "--kv-offloading-size GIB",
            "unchanged; adds latency (C14)",
            how="offloaded",
        ),
        _Strategy(
            "whole-length reservations (no paging)",
            "none",
            "what paging replaced",
            "unchanged",
            how="reserved",
        ),
    )


def _option(
    strategy: _Strategy,
    model: ModelSpec,
    settings: EngineSettings,
    gpu: GpuSpec,
    case: Case,
    pool: Bytes,
) -> Option:
    bare = Option(strategy.name, strategy.effort, strategy.change, strategy.quality)
    if strategy.how == "offloaded":
        reason = "the running requests must fit the pool all the same; only waiting ones move out"
        return replace(bare, reason=reason)
    changed = replace(
        settings,
        kv_cache_dtype=strategy.kv_cache_dtype or settings.kv_cache_dtype,
        eviction=strategy.eviction or settings.eviction,
    )
    try:
        capacity = predict_capacity(model, changed, pool)
        fitting = _fitting(strategy, capacity, case)
        return replace(
            bare,
            kv_bytes_per_request=pool / fitting if fitting else None,
            concurrency=fitting,
            fits=fitting >= case.concurrency,
            throughput_tokens_per_s=_bound(model, changed, gpu, case, fitting),
            ttft_s=_ttft(strategy, model, changed, gpu, case),
        )
    except InputError as error:
        return replace(bare, reason=error.what)


def _fitting(strategy: _Strategy, capacity: KvCapacity, case: Case) -> float:
    """Requests of the case that fit at once, fractional."""
    # The engine keeps one block back.
    blocks = max((capacity.num_blocks or 0) - 1, 0)
    each = capacity.blocks_per_request(case.context_tokens)
    if strategy.how == "shared":
        once = case.shared_prefix_tokens // capacity.block_size
        return max(blocks - once, 0) / (each - once)
    if strategy.how == "reserved":
        return float(blocks // capacity.blocks_per_request(capacity.max_model_len))
    return blocks / each


def _bound(
    model: ModelSpec, settings: EngineSettings, gpu: GpuSpec, case: Case, fitting: float
) -> float | None:
    """Tokens/s that decoding can't exceed with the requests that fit."""
    together = min(int(fitting), case.concurrency)
    if together < 1:
        return None
    step = decode_work(model, settings, [case.context_tokens] * together)
    return together / step.least_time(ceilings_of(gpu, model, settings))


def _ttft(
    strategy: _Strategy, model: ModelSpec, settings: EngineSettings, gpu: GpuSpec, case: Case
) -> Seconds:
    """Seconds that a prompt alone takes at least; a shared prefix is there already."""
    there = case.shared_prefix_tokens if strategy.how == "shared" else 0
    prompt = case.context_tokens - case.output_tokens - there
    return prefill_work(model, settings, prompt).least_time(ceilings_of(gpu, model, settings))


def _against(option: Option, plain: Option) -> Option:
    return replace(
        option,
        memory_ratio=_ratio(plain.kv_bytes_per_request, option.kv_bytes_per_request),
        capacity_ratio=_ratio(option.concurrency, plain.concurrency),
        throughput_ratio=_ratio(option.throughput_tokens_per_s, plain.throughput_tokens_per_s),
        ttft_ratio=_ratio(option.ttft_s, plain.ttft_s),
    )


def _ratio(left: float | None, right: float | None) -> float | None:
    return left / right if left and right else None


# ── the recommendation ──────────────────────────────────────────────────────────────────────


def _recommend(options: Sequence[Option], budget: Budget, case: Case) -> tuple[str | None, str]:
    asked = f"{case.concurrency:,} requests of {case.context_tokens:,} tokens"
    if not budget.fits:
        return None, (
            f"the weights and overhead alone exceed the card by "
            f"{format_bytes(-budget.kv_bytes)}: {_levers(budget)}"
        )
    chosen = next((option for option in options if option.fits), None)
    if chosen is None:
        best = max(options, key=lambda option: option.concurrency or 0.0)
        return None, (
            f"{asked} fit under none of these; {best.strategy} comes nearest with "
            f"{format_count(best.concurrency, 1)}. What adds room: {_levers(budget)}; two "
            "strategies can also be joined (FP8 with a window or eviction)"
        )
    if chosen is options[0]:
        more = next((o for o in options if o.strategy.startswith("FP8")), None)
        spare = f"; FP8 would hold {format_count(more.concurrency, 1)}" if more else ""
        return chosen.strategy, (
            f"{asked} fit as they are ({format_count(chosen.concurrency, 1)} would{spare}): "
            "no strategy is needed for room"
        )
    return chosen.strategy, (
        f"{asked} do not fit as they are ({format_count(options[0].concurrency, 1)} do); "
        f"{chosen.strategy} is the least effort that holds them "
        f"({format_count(chosen.concurrency, 1)}). Quality: {chosen.quality}"
    )


def _levers(budget: Budget) -> str:
    return "; ".join(lever.change for lever in budget.levers[:2]) or "a larger card"
