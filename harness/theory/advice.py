"""Which KV-cache strategies let so many requests of one length run on one kind of GPU, in theory.

Method: each strategy is a change of the server's settings; what fits is counted as the engine
plans it (``capacity``) in the bytes that the card leaves (``budget``); decoding is bounded by the
roofline at the requests that fit, at most those asked for, all at their full length, and TTFT by
that of a prompt alone. Where no flag makes them fit on the cards that were named, more cards (up
to eight times as many, with and without FP8) and two strategies at once are weighed too.
Recommended is the least effort under which all requests fit: flags, then more cards, then another
model, then a plugin. Every figure is modelled; none was measured.

Not covered: answer quality (told as the chapter claims it, C11 to C14), queueing, communication
between cards, and offloading's speed, which depends on the host's link: measure them
(``kvbench bench``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.errors import InputError
from harness.specs.eviction import EvictionRule
from harness.specs.gpu import GpuSpec
from harness.specs.model import ModelSpec
from harness.specs.pool import usable_blocks
from harness.theory.budget import DEFAULT_UTILIZATION, Budget, plan_budget
from harness.theory.capacity import KvCapacity, predict_capacity
from harness.theory.prefix import shared_blocks
from harness.theory.roofline import ceilings_of, decode_work, prefill_work
from harness.theory.settings import EngineSettings
from harness.units import Seconds, Tokens, format_bytes, format_count

Effort = Literal["none", "flags", "more GPUs", "model change", "plugin"]

#: Anchor tokens of the eviction that is modelled; a block or two is what the chapter suggests.
_SINKS: Tokens = 16
#: The chapter's saving by eviction is 2–4×; the stronger end is modelled.
_EVICTED_TO = 4
_MISTRAL_WINDOW: Tokens = 4096
#: How many times as many cards are tried; a server's tensor parallelism seldom goes beyond eight.
_MORE_CARDS = (2, 4, 8)


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
    bound on decoding with those that fit, ``ttft_s`` a lower bound without queueing. Bytes are
    those of one of ``gpus`` cards. None where ``reason`` says why nothing can be computed.
    """

    strategy: str
    effort: Effort
    change: str
    quality_loss: str
    gpus: int = 1
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
    served = _Served(model, settings, gpu, case, utilization)
    budget = served.budget
    options = [_option(strategy, served) for strategy in (_PLAIN, *_strategies(case))]
    if not any(option.fits and option.effort in _EASY for option in options):
        options += [*_on_more_cards(served), *(_option(two, served) for two in _joined(case))]
    told = tuple(_against(option, options[0]) for option in options)
    recommended, why = _recommend(told, budget, case)
    return Advice(case, gpu.name, budget, told, recommended, why)


@dataclass(frozen=True, slots=True)
class _Served:
    """A case on cards of one kind; ``settings`` say how many."""

    model: ModelSpec
    settings: EngineSettings
    gpu: GpuSpec
    case: Case
    utilization: float

    @property
    def budget(self) -> Budget:
        return plan_budget(
            self.model, self.settings, self.gpu.memory_bytes, utilization=self.utilization
        )

    def on_cards(self, times: int) -> _Served:
        cards = self.settings.tensor_parallel_size * times
        return replace(self, settings=replace(self.settings, tensor_parallel_size=cards))


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
    quality_loss: str
    kv_cache_dtype: str | None = None
    eviction: EvictionRule | None = None
    how: Literal["paged", "reserved", "shared", "offloaded"] = "paged"


_PLAIN = _Strategy("paging, model's own dtype", "none", "vLLM's default", "none")


_FP8 = _Strategy(
    "FP8 KV cache",
    "flags",
    "--kv-cache-dtype fp8",
    "said to be minimal (C11); it can break answers, measure it",
    kv_cache_dtype="fp8",
)
_WINDOW = _Strategy(
    f"sliding window of {_MISTRAL_WINDOW:,}",
    "model change",
    "a model that was trained with one",
    "moderate over a long range (C13)",
    eviction=EvictionRule(0, _MISTRAL_WINDOW),
)


def _eviction(case: Case) -> _Strategy:
    kept = max(case.context_tokens // _EVICTED_TO, 1)
    rule = EvictionRule(_SINKS, kept)
    return _Strategy(
        f"token eviction, {_SINKS} sinks and the last {kept:,}",
        "plugin",
        f"KVBENCH_EVICTION={rule}",
        "depends on the policy; what is evicted is lost (C12)",
        eviction=rule,
    )


def _joined(case: Case) -> Iterator[_Strategy]:
    """FP8 on top of what keeps fewer tokens."""
    for fewer in (_WINDOW, _eviction(case)):
        yield replace(
            fewer,
            name=f"FP8 and {fewer.name}",
            change=f"{_FP8.change}, {fewer.change}",
            quality_loss=f"that of FP8, and: {fewer.quality_loss}",
            kv_cache_dtype=_FP8.kv_cache_dtype,
        )


def _strategies(case: Case) -> tuple[_Strategy, ...]:
    shared = (
        _Strategy(
            f"sharing a prefix of {case.shared_prefix_tokens:,} tokens",
            "flags",
            "enable_prefix_caching (vLLM's default)",
            "none",
            how="shared",
        ),
    )
    return (
        *(shared if case.shared_prefix_tokens else ()),
        _FP8,
        _Strategy(
            "INT4 KV cache, scales per token and head",
            "flags",
            "--kv-cache-dtype int4_per_token_head",
            "more than with FP8; measure it",
            kv_cache_dtype="int4_per_token_head",
        ),
        _WINDOW,
        _eviction(case),
        _Strategy(
            "CPU offloading",
            "flags",
            "--kv-offloading-size GIB",
            "none; it adds latency (C14)",
            how="offloaded",
        ),
        _Strategy(
            "whole-length reservations (no paging)",
            "none",
            "what paging replaced",
            "none",
            how="reserved",
        ),
    )


def _on_more_cards(served: _Served) -> Iterator[Option]:
    """The model's own dtype and FP8 on twice, four and eight times the cards, until one fits."""
    for times in _MORE_CARDS:
        wider = served.on_cards(times)
        cards = wider.settings.tensor_parallel_size
        try:
            options = [_option(_over(cards, strategy), wider) for strategy in (_PLAIN, _FP8)]
        except InputError:
            # More cards than the model's heads can be split over.
            return
        if any(option.reason is not None for option in options):
            return
        yield from options
        if any(option.fits for option in options):
            return


def _over(cards: int, strategy: _Strategy) -> _Strategy:
    flag = f"--tensor-parallel-size {cards}"
    if strategy is _PLAIN:
        name, change = "model's own dtype", flag
    else:
        name, change = strategy.name, f"{flag} {strategy.change}"
    return replace(strategy, name=f"{cards} GPUs, {name}", effort="more GPUs", change=change)


def _option(strategy: _Strategy, served: _Served) -> Option:
    model, settings, case = served.model, served.settings, served.case
    pool = max(served.budget.kv_bytes, 0)
    bare = Option(
        strategy.name,
        strategy.effort,
        strategy.change,
        strategy.quality_loss,
        gpus=settings.tensor_parallel_size,
    )
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
            throughput_tokens_per_s=_bound(model, changed, served.gpu, case, fitting),
            ttft_s=_ttft(strategy, model, changed, served.gpu, case),
        )
    except InputError as error:
        return replace(bare, reason=error.what)


def _fitting(strategy: _Strategy, capacity: KvCapacity, case: Case) -> float:
    """Requests of the case that fit at once, fractional."""
    blocks = usable_blocks(capacity.num_blocks or 0)
    each = capacity.blocks_per_request(case.context_tokens)
    if strategy.how == "shared":
        once = shared_blocks(case.shared_prefix_tokens, capacity.block_size)
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

#: What a server is given without another card, model or plugin.
_EASY: tuple[Effort, ...] = ("none", "flags")
_BY_EFFORT: tuple[Effort, ...] = (*_EASY, "more GPUs", "model change", "plugin")


def _recommend(options: Sequence[Option], budget: Budget, case: Case) -> tuple[str | None, str]:
    asked = f"{case.concurrency:,} requests of {case.context_tokens:,} tokens"
    fitting = sorted(
        (option for option in options if option.fits),
        key=lambda option: _BY_EFFORT.index(option.effort),
    )
    if not fitting:
        return None, _none_fits(options, budget, asked)
    chosen = fitting[0]
    held = f"({format_count(chosen.concurrency, 1)})"
    if chosen is options[0]:
        more = next((o for o in options if o.strategy == _FP8.name), None)
        spare = f"; FP8 would hold {format_count(more.concurrency, 1)}" if more else ""
        return chosen.strategy, (
            f"{asked} fit as they are ({format_count(chosen.concurrency, 1)} would{spare}): "
            "no strategy is needed for room"
        )
    short = f"{asked} do not fit as they are ({format_count(options[0].concurrency, 1)} do)"
    if not budget.fits:
        short = _too_large(budget)
    return chosen.strategy, (
        f"{short}; {chosen.strategy} is the least effort that holds all {held}. "
        f"Quality loss: {chosen.quality_loss}{_also(fitting[1:])}"
    )


def _none_fits(options: Sequence[Option], budget: Budget, asked: str) -> str:
    best = max(options, key=lambda option: option.concurrency or 0.0)
    nearest = (
        f"{asked} fit under none of these; {best.strategy} comes nearest with "
        f"{format_count(best.concurrency, 1)}. What adds room: {_levers(budget)}"
    )
    return nearest if budget.fits else f"{_too_large(budget)}; {nearest}"


def _too_large(budget: Budget) -> str:
    return (
        "the weights and overhead alone exceed what the engine may use of one card by "
        f"{format_bytes(-budget.kv_bytes)}"
    )


def _also(others: Sequence[Option]) -> str:
    """The ways that fit beside the one recommended, by effort."""
    if not others:
        return ""
    named = (f"{option.strategy} ({format_count(option.concurrency, 1)})" for option in others)
    return f". These fit too: {'; '.join(named)}"


def _levers(budget: Budget) -> str:
    return "; ".join(lever.change for lever in budget.levers[:2]) or "a larger card"
